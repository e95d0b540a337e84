//! Looks at what C hands over, and refuses what can be seen to be wrong. Nothing else here reads a pointer of C's.

#![expect(
    unsafe_code,
    reason = "C hands over pointers; what it must keep is in the contract of each function"
)]

use std::ffi::{CStr, c_char};
use std::mem::{MaybeUninit, size_of};
use std::{ptr, slice};

use crate::CapiError;
use crate::abi::{Answer, Message, Options, Request, Sampling};

/// Longest list: more than any prompt holds, few enough that a wrong number is seen.
const ITEMS_MAX: usize = 1 << 20;
/// Largest structure of a version to come: a `size` beyond it is no size.
const STRUCTURE_BYTES_MAX: usize = 4096;

/// A structure that begins with the bytes of it that its caller knows.
///
/// # Safety
/// It is `repr(C)`, its first field is `size: usize`, and bytes that are all zero are a value of it.
pub(crate) unsafe trait Versioned: Copy {
    /// Its name in C.
    const NAME: &'static str;
    /// Its bytes in the first version of the library. Those of later fields are zero where a caller doesn't know them.
    const BYTES_MIN: usize;
}

// SAFETY: `repr(C)`, `size` first; numbers and pointers may be zero, and an optional function too.
unsafe impl Versioned for Options {
    const NAME: &'static str = "forerun_options";
    const BYTES_MIN: usize = size_of::<Self>();
}

// SAFETY: as above.
unsafe impl Versioned for Request {
    const NAME: &'static str = "forerun_request";
    const BYTES_MIN: usize = size_of::<Self>();
}

// SAFETY: as above.
unsafe impl Versioned for Sampling {
    const NAME: &'static str = "forerun_sampling";
    const BYTES_MIN: usize = size_of::<Self>();
}

// SAFETY: as above.
unsafe impl Versioned for Answer {
    const NAME: &'static str = "forerun_result";
    const BYTES_MIN: usize = size_of::<Self>();
}

/// A text; `right` says what it must be.
///
/// # Errors
/// [`CapiError::Null`] and [`CapiError::NotUtf8`].
///
/// # Safety
/// Unless it is NULL, `text` ends with a NUL, and doesn't change while the result lives.
pub(crate) unsafe fn text<'a>(
    name: &str,
    text: *const c_char,
    right: &'static str,
) -> Result<&'a str, CapiError> {
    if text.is_null() {
        return Err(CapiError::Null { name: name.to_owned(), right });
    }
    // SAFETY: not NULL, and the caller promises the rest.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str()
        .map_err(|error| CapiError::NotUtf8 { name: name.to_owned(), offset_bytes: error.valid_up_to() })
}

/// The same, where NULL is nothing.
///
/// # Errors
/// [`CapiError::NotUtf8`].
///
/// # Safety
/// As [`text`].
pub(crate) unsafe fn optional_text<'a>(
    name: &str,
    words: *const c_char,
) -> Result<Option<&'a str>, CapiError> {
    if words.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller promises what `text` asks for.
    unsafe { text(name, words, "text") }.map(Some)
}

/// A list of `len` items at `items`.
///
/// # Errors
/// [`CapiError::Null`], [`CapiError::Unaligned`], [`CapiError::Value`] for a length that is none.
///
/// # Safety
/// Unless it is NULL, `items` has `len` values of `T`, which don't change while the result lives.
pub(crate) unsafe fn list<'a, T>(
    (name, len_name): (&str, &str),
    items: *const T,
    len: usize,
) -> Result<&'a [T], CapiError> {
    if len == 0 {
        return Ok(&[]);
    }
    if len > ITEMS_MAX {
        let found = i128::try_from(len).unwrap_or(i128::MAX);
        return Err(CapiError::Value { name: len_name.to_owned(), found, right: "0 to 1048576" });
    }
    if items.is_null() {
        let right = "an array of as many items as its number says";
        return Err(CapiError::Null { name: name.to_owned(), right });
    }
    check_aligned(name, items)?;
    // SAFETY: neither NULL nor unaligned, and the caller promises that all `len` values are there.
    Ok(unsafe { slice::from_raw_parts(items, len) })
}

/// A copy of the structure at `from`: fields that its caller doesn't know are zero.
///
/// # Errors
/// [`CapiError::Null`], [`CapiError::Unaligned`], [`CapiError::Size`], [`CapiError::UnknownField`].
///
/// # Safety
/// Unless it is NULL, `from` has a `size` at its begin and as many bytes as it says, and nobody writes them meanwhile.
pub(crate) unsafe fn structure<T: Versioned>(name: &str, from: *const T) -> Result<T, CapiError> {
    // SAFETY: the caller promises what `size_of_caller` asks for.
    let size = unsafe { size_of_caller(name, from) }?;
    let known = size_of::<T>();
    let mut value = MaybeUninit::<T>::zeroed();
    // SAFETY: `size` bytes may be read by the caller's promise, `value` has `known`, and the two are apart.
    unsafe { ptr::copy_nonoverlapping(from.cast::<u8>(), value.as_mut_ptr().cast(), size.min(known)) };
    if size > known {
        // SAFETY: the caller promises `size` bytes.
        let rest = unsafe { slice::from_raw_parts(from.cast::<u8>().add(known), size - known) };
        if let Some(at) = rest.iter().position(|&byte| byte != 0) {
            return Err(CapiError::UnknownField { name: T::NAME, offset_bytes: known + at, known });
        }
    }
    // SAFETY: zero is a value of every field, by the trait; those that were copied are what C wrote as that type.
    Ok(unsafe { value.assume_init() })
}

/// Writes `value` to `to`, as much of it as the `size` there says that the caller knows; the size stays.
///
/// # Errors
/// [`CapiError::Null`], [`CapiError::Unaligned`], [`CapiError::Size`].
///
/// # Safety
/// As [`structure`], and the bytes may be written.
pub(crate) unsafe fn write<T: Versioned>(name: &str, to: *mut T, value: &T) -> Result<(), CapiError> {
    // SAFETY: the caller promises what `size_of_caller` asks for.
    let size = unsafe { size_of_caller(name, to) }?.min(size_of::<T>());
    let head = size_of::<usize>();
    let from = ptr::from_ref(value).cast::<u8>();
    // SAFETY: both have `size` bytes, of which `head` are the size itself; they are apart, since `value` is Rust's.
    unsafe { ptr::copy_nonoverlapping(from.add(head), to.cast::<u8>().add(head), size - head) };
    Ok(())
}

/// How many bytes of the structure its caller knows.
///
/// # Safety
/// As [`structure`].
unsafe fn size_of_caller<T: Versioned>(name: &str, from: *const T) -> Result<usize, CapiError> {
    if from.is_null() {
        return Err(CapiError::Null { name: name.to_owned(), right: T::NAME });
    }
    check_aligned(name, from)?;
    // SAFETY: neither NULL nor unaligned; by the trait, what comes first is a size.
    let found = unsafe { from.cast::<usize>().read() };
    if !(T::BYTES_MIN..=STRUCTURE_BYTES_MAX).contains(&found) {
        return Err(CapiError::Size { name: T::NAME, found, expected: size_of::<T>() });
    }
    Ok(found)
}

fn check_aligned<T>(name: &str, pointer: *const T) -> Result<(), CapiError> {
    if pointer.is_aligned() {
        return Ok(());
    }
    let right = "where the compiler puts such a value";
    Err(CapiError::Unaligned { name: name.to_owned(), address: pointer.addr(), right })
}

/// The messages of a request, each with its role and its words.
///
/// # Errors
/// As [`text`].
///
/// # Safety
/// Each `content` is as [`text`] asks.
pub(crate) unsafe fn messages<'a>(messages: &[Message]) -> Result<Vec<(i32, &'a str)>, CapiError> {
    let words = messages.iter().enumerate().map(|(i, message)| {
        // SAFETY: the caller promises it of every message.
        let content =
            unsafe { text(&format!("messages[{i}].content"), message.content, "text, which may be empty") };
        Ok((message.role, content?))
    });
    words.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampling(size: usize) -> Sampling {
        Sampling {
            size,
            seed: 7,
            temperature: 0.5,
            top_p: 0.0,
            min_p: 0.0,
            top_k: 0,
            repetition_penalty: 0.0,
        }
    }

    #[test]
    fn a_structure_of_another_size_is_refused() {
        for size in [0, 1, size_of::<Sampling>() - 1, STRUCTURE_BYTES_MAX + 1, usize::MAX] {
            // SAFETY: the reference is to a whole structure, of which only the size is read.
            let error = unsafe { structure("s", &sampling(size)) }.unwrap_err();
            assert!(matches!(error, CapiError::Size { found, .. } if found == size), "{error}");
        }
        // SAFETY: a reference to a whole structure.
        let right = unsafe { structure("s", &sampling(size_of::<Sampling>())) }.unwrap();
        assert_eq!((right.seed, right.temperature), (7, 0.5));
    }

    /// A structure with more behind it, as a later header may have.
    #[repr(C)]
    struct Later {
        sampling: Sampling,
        more: u64,
    }

    #[test]
    fn fields_of_a_later_version_must_be_zero() {
        let mut later = Later { sampling: sampling(size_of::<Later>()), more: 0 };
        // SAFETY: the pointer is to all of it, whose bytes are as many as its size says.
        let read = unsafe { structure("s", ptr::from_ref(&later).cast::<Sampling>()) };
        assert_eq!(read.unwrap().seed, 7);
        later.more = 1;
        // SAFETY: as above.
        let error = unsafe { structure("s", ptr::from_ref(&later).cast::<Sampling>()) }.unwrap_err();
        assert!(matches!(error, CapiError::UnknownField { known, .. } if known == size_of::<Sampling>()));
    }

    #[test]
    fn a_list_is_there_aligned_and_of_a_sane_length() {
        let (names, nothing) = (("items", "n_items"), ptr::null::<u32>());
        // SAFETY: no list has items that could be read.
        let list = |items: *const u32, len| unsafe { list(names, items, len) };
        assert!(list(nothing, 0).unwrap().is_empty());
        assert!(matches!(list(nothing, 2), Err(CapiError::Null { .. })));
        assert!(matches!(list(nothing, usize::MAX), Err(CapiError::Value { name, .. }) if name == "n_items"));
        let odd = ptr::without_provenance(5);
        assert!(matches!(list(odd, 1), Err(CapiError::Unaligned { address: 5, .. })));
    }

    #[test]
    fn text_that_is_not_utf8_is_named_with_its_place() {
        // SAFETY: ends with a NUL.
        let error = unsafe { text("prompt", c"ab\xff".as_ptr(), "text") }.unwrap_err();
        assert_eq!(error.words(), "`prompt` is not UTF-8 at byte 2; text must be UTF-8");
        // SAFETY: NULL is never read.
        let error = unsafe { text("prompt", ptr::null(), "text") }.unwrap_err();
        assert_eq!(error.words(), "`prompt` is NULL; it must be text");
    }
}
