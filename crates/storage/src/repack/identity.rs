//! What a source is known by: names, sizes and times of its files, and a hash of their headers.

use std::time::UNIX_EPOCH;

use sha2::{Digest, Sha256};

use super::journal::Fingerprint;
use crate::files::{Content, DataFile};
use crate::gguf::HeaderWriter;
use crate::{Gguf, PackError};

const PIECE_BYTES: usize = 1 << 16;
/// Places of each file whose bytes count: weights that were made otherwise differ nearly everywhere.
const N_SAMPLES: u64 = 32;
const SAMPLE_BYTES: u64 = 4096;

/// Stands for a model in what is kept for it: a hash of its headers, of the sizes and times of its files, and of samples of
/// their contents. A copy of the files with other times counts as another model; so does one with other weights, even if
/// its header is the same.
///
/// # Errors
/// [`PackError::Read`] when a file can't be read.
pub fn identity(gguf: &Gguf) -> Result<[u8; 32], PackError> {
    let mut hash = Sha256::new();
    hash.update(header_hash(gguf)?);
    let mut buffer = vec![0; usize::try_from(SAMPLE_BYTES).unwrap_or(0)];
    for file in gguf.files().files() {
        hash.update(file.len_bytes.to_le_bytes());
        hash.update(modified_ns(file).to_le_bytes());
        let last = file.len_bytes.saturating_sub(SAMPLE_BYTES);
        if last > 0 {
            for i in 1..=N_SAMPLES {
                super::read(file, &mut buffer, last / N_SAMPLES * i)?;
                hash.update(&buffer);
            }
        }
    }
    Ok(hash.finalize().into())
}

/// Name, size and hash of the headers of a source, for the packed file.
pub(super) fn describe(gguf: &Gguf) -> Result<[String; 3], PackError> {
    let files = gguf.files().files();
    let size_bytes: u64 = files.iter().map(|file| file.len_bytes).sum();
    Ok([name(&files[0]), size_bytes.to_string(), format!("sha256:{}", hex(&header_hash(gguf)?))])
}

/// Stands for the source as it is now, and for all settings: those are in the header that is to be written.
pub(super) fn fingerprint(
    gguf: &Gguf,
    header: &HeaderWriter,
    step_bytes: u64,
) -> Result<Fingerprint, PackError> {
    let mut hash = Sha256::new();
    for file in gguf.files().files() {
        hash.update(name(file).as_bytes());
        hash.update([0]);
        hash.update(file.len_bytes.to_le_bytes());
        hash.update(modified_ns(file).to_le_bytes());
    }
    hash.update(header_hash(gguf)?);
    hash.update(step_bytes.to_le_bytes());
    header.write(&mut Hashing(&mut hash)).expect("hashing can't fail");
    Ok(hash.finalize().into())
}

fn name(file: &DataFile) -> String {
    file.path.file_name().unwrap_or(file.path.as_os_str()).to_string_lossy().into_owned()
}

/// When the file was last written, if the system says.
fn modified_ns(file: &DataFile) -> u128 {
    let modified = match &file.content {
        Content::File(file) => file.metadata().and_then(|metadata| metadata.modified()).ok(),
        Content::Bytes(_) => None,
    };
    modified.and_then(|time| time.duration_since(UNIX_EPOCH).ok()).map_or(0, |age| age.as_nanos())
}

fn header_hash(gguf: &Gguf) -> Result<[u8; 32], PackError> {
    let mut hash = Sha256::new();
    let mut buffer = vec![0; PIECE_BYTES];
    for (file, &header_bytes) in gguf.files().files().iter().zip(gguf.header_bytes()) {
        let mut offset_bytes = 0;
        while offset_bytes < header_bytes {
            let len = usize::try_from(header_bytes - offset_bytes).unwrap_or(PIECE_BYTES).min(PIECE_BYTES);
            super::read(file, &mut buffer[..len], offset_bytes)?;
            hash.update(&buffer[..len]);
            offset_bytes += len as u64;
        }
    }
    Ok(hash.finalize().into())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

struct Hashing<'a>(&'a mut Sha256);

impl std::io::Write for Hashing<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
