//! `forerun pull`: a model from a Hugging Face Hub to where `forerun run -m` finds it.
//!
//! A wish (`REPO[:FILE]`) and the repository's [`listing`] go into [`select()`], which says which files; [`layout`] says
//! where each goes; [`transfer`] brings it there, resumed after every drop, and checked by size and hash before it gets
//! its final name. The model's path goes to stdout.
//!
//! Of `hf-hub` this uses the names: how a repository is called in URLs and in the cache that other tools share. The
//! transfer is done here, with the HTTP client that it brings: its own download doesn't compare the `ETag` of a resumed
//! file, appends a whole answer of a server that ignores `Range`, checks no hash, and its list of files has neither sizes
//! nor hashes. It is version 0.5 on purpose: version 1 carries some 200 crates more.

mod error;
mod hash;
mod http;
mod layout;
mod listing;
mod partial;
mod select;
mod settings;
mod stream;
mod transfer;
mod tries;
mod wish;

use std::error::Error;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hf_hub::{Repo, RepoType};
use indicatif::BinaryBytes;
use serde::Serialize;

use crate::Outcome;
use crate::args::PullArgs;
use crate::interrupt::Interrupt;
use crate::progress::{Bar, Unit};
use crate::say::say;
use error::{PullError, Subject};
use http::{Client, Request};
use layout::{Layout, Target};
use listing::{Listing, RemoteFile};
use partial::Content;
use select::select;
use settings::Settings;
use stream::{Part, Stream, pause};
use transfer::Transfer;
use tries::Tries;
pub(crate) use wish::{Wish, revision};

/// Longest list of files that is read.
const LISTING_BYTES_MAX: usize = 32 << 20;
/// Most tries for the list: a wrong endpoint should be noticed soon.
const LISTING_TRIES_MAX: u32 = 3;

/// What `--json` prints.
#[derive(Serialize)]
struct Output<'a> {
    repo: &'a str,
    revision: &'a str,
    commit: &'a str,
    path: &'a Path,
    bytes: u64,
    bytes_pulled: u64,
    files: Vec<FileOutput<'a>>,
}

#[derive(Serialize)]
struct FileOutput<'a> {
    name: &'a str,
    path: PathBuf,
    bytes: u64,
    hash: String,
    bytes_pulled: u64,
}

/// A file, and what is to become of it.
struct Planned {
    name: String,
    content: Content,
    url: String,
    target: Target,
}

/// Pulls a model.
pub(crate) fn pull(args: &PullArgs) -> Result<Outcome, Box<dyn Error>> {
    let interrupt = Interrupt::install()?;
    match pull_with(args, &Settings::from_env()?, &interrupt) {
        Ok(()) => Ok(Outcome::Done),
        Err(error) if matches!(error.downcast_ref(), Some(PullError::Interrupted)) => {
            Ok(Outcome::Interrupted)
        }
        Err(error) => Err(error),
    }
}

fn pull_with(args: &PullArgs, settings: &Settings, interrupt: &Interrupt) -> Result<(), Box<dyn Error>> {
    let repo = Repo::with_revision(args.wish.repo.clone(), RepoType::Model, args.revision.clone());
    let client = Arc::new(Client::new(&settings.endpoint, settings.token.clone()));
    let listing = list(&client, settings, &repo, args, interrupt)?;
    let layout = match (&args.dir, &settings.cache) {
        (Some(folder), _) => Layout::Folder(folder.clone()),
        (None, Some(folder)) => Layout::cache(folder, &repo, &listing.commit),
        (None, None) => return Err(PullError::NoHome.into()),
    };
    let files = plan(select(&listing.files, &args.wish)?, settings, &repo, &listing.commit, &layout, args)?;
    check_space(&files)?;
    let total = files.iter().fold(0_u64, |sum, file| sum.saturating_add(file.content.size));
    if !args.quiet {
        let shards = if files.len() > 1 { format!(" in {} shards", files.len()) } else { String::new() };
        say!("{}: {}{shards}", args.wish.repo, BinaryBytes(total));
    }
    let bar = Bar::new("pulling", Unit::Bytes, total, args.quiet);
    let transfer =
        Transfer { client, interrupt: interrupt.clone(), bar, tries: args.tries, quiet: args.quiet };
    let (mut before, mut outputs) = (0, Vec::new());
    for Planned { name, content, url, target } in &files {
        let bytes_pulled = transfer.pull(content, url, target, before)?;
        before += content.size;
        let hash = format!("{}:{}", content.oid.kind(), content.oid.hex());
        let path = target.name().to_owned();
        outputs.push(FileOutput { name, path, bytes: content.size, hash, bytes_pulled });
    }
    layout.note_revision(&args.revision)?;
    drop(transfer);
    print(args, &listing.commit, outputs)?;
    Ok(())
}

/// Asks for the list of files, with sizes and hashes.
fn list(
    client: &Arc<Client>,
    settings: &Settings,
    repo: &Repo,
    args: &PullArgs,
    interrupt: &Interrupt,
) -> Result<Listing, PullError> {
    let subject = Subject { repo: args.wish.repo.clone(), file: None };
    let url = format!("{}/api/{}?blobs=true", settings.endpoint, repo.api_url());
    let mut tries = Tries::new(args.tries.min(LISTING_TRIES_MAX));
    loop {
        let request = Request { subject: subject.clone(), url: url.clone(), from: None };
        match read_all(Stream::open(client, request), &subject, interrupt) {
            Ok(bytes) => return Listing::parse(&bytes, &subject),
            Err(error) => pause(tries.after(error, 0)?, interrupt)?,
        }
    }
}

fn read_all(mut stream: Stream, subject: &Subject, interrupt: &Interrupt) -> Result<Vec<u8>, PullError> {
    let mut all = Vec::new();
    while let Some(part) = stream.next(interrupt)? {
        if let Part::Bytes(bytes) = part {
            all.extend(bytes);
        }
        if all.len() > LISTING_BYTES_MAX {
            return Err(PullError::TooLong { subject: subject.clone(), most: LISTING_BYTES_MAX as u64 });
        }
    }
    Ok(all)
}

/// URL, hash and place of each file.
fn plan(
    files: Vec<RemoteFile>,
    settings: &Settings,
    repo: &Repo,
    commit: &str,
    layout: &Layout,
    args: &PullArgs,
) -> Result<Vec<Planned>, PullError> {
    let planned = files.into_iter().map(|RemoteFile { name, size, oid }| {
        let subject = Subject { repo: args.wish.repo.clone(), file: Some(name.clone()) };
        let (Some(size), Some(oid)) = (size, oid) else {
            return Err(PullError::NoHash { subject });
        };
        let url = format!("{}/{}/resolve/{commit}/{}", settings.endpoint, repo.url(), escaped(&name));
        let target = layout.target(&name, &oid);
        Ok(Planned { name, content: Content { subject, size, oid }, url, target })
    });
    planned.collect()
}

/// A path as a part of a URL.
fn escaped(name: &str) -> String {
    name.bytes().fold(String::new(), |mut url, byte| {
        if byte.is_ascii_alphanumeric() || b"/-._~".contains(&byte) {
            url.push(char::from(byte));
        } else {
            let _ = write!(url, "%{byte:02X}");
        }
        url
    })
}

/// Fails unless the disk has room for what is still to come.
fn check_space(files: &[Planned]) -> Result<(), PullError> {
    let len = |path: &Path| path.metadata().map_or(0, |metadata| metadata.len());
    let missing = files.iter().map(|Planned { content, target, .. }| {
        if target.path.exists() { 0 } else { content.size.saturating_sub(len(&target.partial)) }
    });
    let need = missing.fold(0, u64::saturating_add);
    let Some(folder) = files.first().and_then(|file| file.target.path.ancestors().find(|path| path.is_dir()))
    else {
        // A relative path into the current folder, or a root that isn't there: writing will tell.
        return check_free(Path::new("."), need);
    };
    check_free(folder, need)
}

fn check_free(folder: &Path, need: u64) -> Result<(), PullError> {
    let free = fs4::available_space(folder).map_err(PullError::io("measuring the free space of", folder))?;
    if need <= free { Ok(()) } else { Err(PullError::NoSpace { folder: folder.to_owned(), need, free }) }
}

fn print(args: &PullArgs, commit: &str, files: Vec<FileOutput<'_>>) -> io::Result<()> {
    let sum = |value: fn(&FileOutput<'_>) -> u64| files.iter().map(value).sum();
    let (bytes, bytes_pulled) = (sum(|file| file.bytes), sum(|file| file.bytes_pulled));
    let path = files.first().map_or(PathBuf::new(), |file| file.path.clone());
    let mut stdout = io::stdout().lock();
    if args.json {
        let (repo, revision) = (&args.wish.repo, &args.revision);
        let output = Output { repo, revision, commit, path: &path, bytes, bytes_pulled, files };
        serde_json::to_writer(&mut stdout, &output)?;
        return stdout.write_all(b"\n");
    }
    writeln!(stdout, "{}", path.display())
}
