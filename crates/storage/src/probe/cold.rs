//! Takes places of a file out of the system's page cache, and proves that they are out.

#[cfg(target_os = "linux")]
pub(super) use linux::Chiller;
#[cfg(not(target_os = "linux"))]
pub(super) use nowhere::Chiller;

#[cfg(target_os = "linux")]
mod linux {
    use std::fs::File;
    use std::io::{self, IoSliceMut};
    use std::num::NonZeroU64;
    use std::os::fd::AsRawFd;

    use rustix::fs::{Advice, fadvise};
    use rustix::io::{ReadWriteFlags, preadv2};

    use crate::probe::places::Place;
    use crate::{Content, FileSet};

    const PAGE_BYTES: u64 = 4096;

    /// Files opened once more, for dropping and looking only.
    pub(in crate::probe) struct Chiller(Vec<File>);

    impl Chiller {
        /// Opens all files once more.
        ///
        /// # Errors
        /// Why nothing can be proven, in words.
        pub(in crate::probe) fn open(files: &FileSet) -> Result<Self, String> {
            let files = files.files().iter().map(|file| {
                let Content::File(content) = &file.content else { return Err("it is in memory".to_owned()) };
                // Not by its path, where another file may be by now.
                let again = File::open(format!("/proc/self/fd/{}", content.as_raw_fd()));
                let again = again.map_err(|error| format!("it can't be opened again ({error})"))?;
                // A look at a page that isn't there makes the system read it, and with this advice nothing around it.
                fadvise(&again, 0, None, Advice::Random)
                    .map_err(|error| format!("the system takes no advice ({error})"))?;
                Ok(again)
            });
            files.collect::<Result<_, _>>().map(Self)
        }

        /// Takes `places` out of the page cache; returns those that are proven to be out.
        ///
        /// # Errors
        /// Why nothing can be proven, in words.
        pub(in crate::probe) fn chill(&self, places: &[Place], len_bytes: u64) -> Result<Vec<Place>, String> {
            self.forget(places, len_bytes);
            let mut cold = Vec::with_capacity(places.len());
            for place in places {
                let looks = [0, len_bytes / 2, len_bytes.saturating_sub(PAGE_BYTES)];
                let mut is_cold = true;
                for skip in looks {
                    is_cold &= self.is_out(place, skip).map_err(|error| {
                        format!("the file system doesn't say what is in memory ({error})")
                    })?;
                }
                if is_cold {
                    cold.push(*place);
                }
            }
            Ok(cold)
        }

        /// Asks the system to drop `places` from the page cache.
        pub(in crate::probe) fn forget(&self, places: &[Place], len_bytes: u64) {
            for place in places {
                // Advice that isn't taken shows when it is looked.
                let file = &self.0[usize::from(place.file)];
                let _ = fadvise(file, place.offset_bytes, NonZeroU64::new(len_bytes), Advice::DontNeed);
            }
        }

        /// Whether the page at a place isn't in memory: a read that must not wait fails.
        fn is_out(&self, place: &Place, skip_bytes: u64) -> io::Result<bool> {
            let (file, mut byte) = (&self.0[usize::from(place.file)], [0]);
            let buffers = &mut [IoSliceMut::new(&mut byte)];
            match preadv2(file, buffers, place.offset_bytes + skip_bytes, ReadWriteFlags::NOWAIT) {
                Ok(_) => Ok(false),
                Err(error) if error == rustix::io::Errno::AGAIN => Ok(true),
                Err(error) => Err(error.into()),
            }
        }
    }

    #[cfg(test)]
    mod tests {
        use std::io::Write as _;

        use super::*;
        use crate::{DataFile, testing};

        const LEN_BYTES: u64 = 64 << 10;

        fn place(i: u64) -> Place {
            Place { file: 0, offset_bytes: i * LEN_BYTES }
        }

        #[test]
        fn what_was_just_read_is_not_cold_and_what_was_dropped_is() {
            let files = testing::temporary(&[vec![7; 1 << 20].into()]);
            let Content::File(file) = &files.files()[0].content else { unreachable!() };
            file.sync_all().unwrap();
            let chiller = Chiller::open(&files).unwrap();
            if chiller.chill(&[place(0), place(9)], LEN_BYTES) != Ok(vec![place(0), place(9)]) {
                eprintln!("skipped: the file system keeps the pages of temporary files, or doesn't say");
                return;
            }
            let mut bytes = vec![0; 64 << 10];
            files.files()[0].read_exact_at(&mut bytes, LEN_BYTES).unwrap();
            assert!(!chiller.is_out(&place(1), LEN_BYTES / 2).unwrap(), "it was just read");
            assert!(
                chiller.is_out(&place(12), LEN_BYTES / 2).unwrap(),
                "looks read more than they looked at"
            );
        }

        #[test]
        fn memory_is_never_cold() {
            let Ok(mut file) = tempfile::tempfile_in("/dev/shm") else { return };
            file.write_all(&[7; 1 << 20]).unwrap();
            let files = FileSet::new(vec![DataFile::from_file("shm".as_ref(), file).unwrap()]);
            let cold = Chiller::open(&files).and_then(|chiller| chiller.chill(&[place(0)], LEN_BYTES));
            assert!(cold.as_ref().is_ok_and(Vec::is_empty) || cold.is_err(), "{cold:?}");
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod nowhere {
    use crate::FileSet;
    use crate::probe::places::Place;

    /// Nothing can be proven here.
    pub(in crate::probe) enum Chiller {}

    impl Chiller {
        pub(in crate::probe) fn open(_files: &FileSet) -> Result<Self, String> {
            Err("this system doesn't say what is in memory".into())
        }

        pub(in crate::probe) fn chill(
            &self,
            _places: &[Place],
            _len_bytes: u64,
        ) -> Result<Vec<Place>, String> {
            match *self {}
        }

        pub(in crate::probe) fn forget(&self, _places: &[Place], _len_bytes: u64) {
            match *self {}
        }
    }
}
