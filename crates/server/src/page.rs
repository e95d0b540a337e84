//! The page at `/`: a chat, and the machine at work. Its files are part of the program.
//!
//! What the page may do is said with every file of it: nothing from elsewhere, no script or style in the document itself, in
//! no frame. A browser keeps the files, but asks whether they are the newest each time.

use std::fmt::Write as _;
use std::sync::LazyLock;

use axum::http::header::{self, HeaderName};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use sha2::{Digest, Sha256};

use crate::http::Routes;

const POLICY: &str = "default-src 'self'; style-src 'self'; script-src 'self'; img-src 'self' data:; connect-src 'self'; \
                      base-uri 'none'; form-action 'self'; frame-ancestors 'none'";
const HTML: &str = "text/html; charset=utf-8";

/// A file of the page.
struct File {
    path: String,
    content_type: &'static str,
    text: &'static str,
    /// In quotes; another text has another one.
    tag: String,
}

macro_rules! files {
    ($($name:literal,)*) => {
        vec![$(File::new($name, include_str!(concat!("page/", $name))),)*]
    };
}

static FILES: LazyLock<Vec<File>> = LazyLock::new(|| {
    files! {
        "index.html",
        "api.js",
        "budget.js",
        "census.js",
        "chat.js",
        "completion.js",
        "dom.js",
        "format.js",
        "heatmap.js",
        "icon.svg",
        "key.js",
        "live.js",
        "machine.js",
        "main.js",
        "markdown.js",
        "settings.js",
        "sse.js",
        "style.css",
        "tabs.js",
        "timeline.js",
        "turn.js",
        "work.js",
    }
});

impl File {
    fn new(name: &str, text: &'static str) -> Self {
        let path = if name == "index.html" { "/".to_owned() } else { format!("/page/{name}") };
        let content_type = match name.rsplit_once('.') {
            Some((_, "html")) => HTML,
            Some((_, "css")) => "text/css; charset=utf-8",
            Some((_, "js")) => "text/javascript; charset=utf-8",
            Some((_, "svg")) => "image/svg+xml",
            _ => "application/octet-stream",
        };
        let mut tag = String::from("\"");
        for byte in &Sha256::digest(text.as_bytes())[..12] {
            let _ = write!(tag, "{byte:02x}");
        }
        tag.push('"');
        Self { path, content_type, text, tag }
    }
}

/// The routes of the files.
pub(crate) fn routes() -> Routes {
    FILES.iter().fold(Routes::new(), |routes, file| {
        routes.route(&file.path, get(move |headers: HeaderMap| async move { response(file, &headers) }))
    })
}

/// Whether `path` is one of the page's files: anybody may have them, for the page is what asks for the key.
pub(crate) fn has(path: &str) -> bool {
    FILES.iter().any(|file| file.path == path)
}

/// The file, or that the client has it already.
fn response(file: &'static File, request: &HeaderMap) -> Response {
    let tag = file.tag.as_str();
    let headers: [(HeaderName, HeaderValue); 5] = [
        (header::CONTENT_TYPE, HeaderValue::from_static(file.content_type)),
        (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY)),
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        (header::ETAG, HeaderValue::from_str(tag).unwrap_or(HeaderValue::from_static("\"\""))),
    ];
    if is_known(request, tag) {
        return (StatusCode::NOT_MODIFIED, headers).into_response();
    }
    (headers, file.text).into_response()
}

/// Whether the client says that it has this one. A tag that passed a compressing proxy may have become a weak one.
fn is_known(request: &HeaderMap, tag: &str) -> bool {
    let lists = request.get_all(header::IF_NONE_MATCH).iter().filter_map(|list| list.to_str().ok());
    let mut tags = lists.flat_map(|list| list.split(',')).map(str::trim);
    tags.any(|known| known == "*" || known.strip_prefix("W/").unwrap_or(known) == tag)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    fn file(path: &str) -> &'static File {
        FILES.iter().find(|file| file.path == path).unwrap()
    }

    fn asked_with(tags: &str) -> HeaderMap {
        HeaderMap::from_iter([(header::IF_NONE_MATCH, HeaderValue::from_str(tags).unwrap())])
    }

    #[test]
    fn every_file_of_the_folder_is_served() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/page");
        let there = std::fs::read_dir(folder).unwrap();
        let there: BTreeSet<_> =
            there.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        let served = FILES.iter().map(|file| match file.path.as_str() {
            "/" => "index.html".to_owned(),
            path => path.strip_prefix("/page/").unwrap().to_owned(),
        });
        assert_eq!(served.collect::<BTreeSet<_>>(), there);
    }

    #[test]
    fn what_a_file_names_is_served() {
        for File { path, text, .. } in FILES.iter() {
            for part in text.split(['"', '\'']) {
                let named = part.strip_prefix("./").or_else(|| part.strip_prefix("page/"));
                let Some(name) = named.filter(|name| !name.contains(char::is_whitespace)) else { continue };
                assert!(has(&format!("/page/{name}")), "{path} names {name}");
            }
        }
    }

    #[test]
    fn nothing_in_the_page_breaks_its_own_policy() {
        for File { path, text, .. } in FILES.iter() {
            let lower = text.to_lowercase();
            for wrong in ["innerhtml", "outerhtml", "insertadjacenthtml", "document.write", "eval(", "https:"]
            {
                assert!(!lower.contains(wrong), "{path} has {wrong}");
            }
        }
        let page = file("/").text;
        for wrong in ["style=", "<style", "onclick", "onload", "javascript:"] {
            assert!(!page.contains(wrong), "the page has {wrong}");
        }
        assert_eq!(page.matches("<script").count(), page.matches("<script type=\"module\" src=").count());
    }

    #[test]
    fn a_file_says_what_it_is_and_what_it_may() {
        let response = response(file("/"), &HeaderMap::new());
        assert_eq!(response.status(), StatusCode::OK);
        let said = |name: HeaderName| response.headers()[name].to_str().unwrap();
        assert_eq!(said(header::CONTENT_TYPE), HTML);
        assert_eq!(said(header::X_CONTENT_TYPE_OPTIONS), "nosniff");
        assert_eq!(said(header::CACHE_CONTROL), "no-cache");
        assert!(said(header::CONTENT_SECURITY_POLICY).contains("frame-ancestors 'none'"));
        assert!(!said(header::CONTENT_SECURITY_POLICY).contains("unsafe"));
        for file in FILES.iter() {
            assert_ne!(file.content_type, "application/octet-stream", "{}", file.path);
        }
    }

    #[test]
    fn a_file_that_the_client_has_is_not_sent_again() {
        let tag = file("/page/main.js").tag.as_str();
        for known in [tag.to_owned(), format!("W/{tag}"), format!("\"other\", {tag}"), "*".to_owned()] {
            let response = response(file("/page/main.js"), &asked_with(&known));
            assert_eq!(response.status(), StatusCode::NOT_MODIFIED, "{known}");
            assert_eq!(response.headers()[header::ETAG], tag);
        }
        assert_eq!(response(file("/page/main.js"), &asked_with("\"other\"")).status(), StatusCode::OK);
    }

    #[test]
    fn files_have_tags_of_their_own() {
        let tags: BTreeSet<_> = FILES.iter().map(|file| file.tag.as_str()).collect();
        assert_eq!(tags.len(), FILES.len());
    }
}
