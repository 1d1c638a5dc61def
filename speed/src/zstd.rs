//! Decompression of one frame, with a context that the thread keeps.

use std::cell::RefCell;
use std::ffi::c_void;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use zstd_safe::{DCtx, WriteBuf, zstd_sys};

use crate::bytes::{end_avx, with_bytes};

const MAGIC: &[u8] = b"\x28\xb5\x2f\xfd";
/// Bytes. What is larger is left to Python: there the calls cost nothing in comparison, and memory grows with the data.
const MOST: usize = 4 << 20;
const WINDOW_LOG: u8 = 22;

thread_local! {
    static CONTEXT: RefCell<Option<DCtx<'static>>> = const { RefCell::new(None) };
}

/// The frame that `data` begins with, and the bytes that it says it holds: at most `most` of them.
fn frame(data: &[u8], most: usize) -> Option<(&[u8], usize)> {
    if !data.starts_with(MAGIC) {
        return None;
    }
    // One segment, or a window that every decompressor takes.
    let descriptor = *data.get(4)?;
    if descriptor & 0x20 == 0 && 10 + (data.get(5)? >> 3) > WINDOW_LOG {
        return None;
    }
    // SAFETY: both read `data.len()` bytes at most.
    let (says, length) = unsafe {
        let start = data.as_ptr().cast::<c_void>();
        (
            zstd_sys::ZSTD_getFrameContentSize(start, data.len()),
            zstd_sys::ZSTD_findFrameCompressedSize(start, data.len()),
        )
    };
    // An error is a number near 2**64.
    let says = usize::try_from(says).ok()?;
    (says > 0 && says <= most.min(MOST)).then_some((data.get(..length)?, says))
}

/// Returns the number of bytes that were written.
fn decompress_into<C: WriteBuf + ?Sized>(content: &mut C, data: &[u8]) -> Option<usize> {
    end_avx();
    CONTEXT.with(|kept| {
        let mut kept = kept.try_borrow_mut().ok()?;
        if kept.is_none() {
            *kept = Some(DCtx::try_create()?);
        }
        kept.as_mut()?.decompress(content, data).ok()
    })
}

/// The content of the frame that `data` begins with, if the frame says that it holds exactly `raw` bytes.
///
/// `buffer` makes an empty vector with room for so many.
pub fn content_of(data: &[u8], raw: usize, buffer: impl FnOnce(usize) -> Vec<u8>) -> Option<Vec<u8>> {
    let (data, says) = frame(data, raw)?;
    if says != raw {
        return None;
    }
    let mut content = buffer(raw);
    (decompress_into(&mut content, data)? == raw).then_some(content)
}

/// The content of the frame that `data` begins with. None if it is more than `most` bytes, or if Python has to decide.
#[pyfunction]
pub fn decompress<'py>(py: Python<'py>, data: &Bound<'py, PyAny>, most: usize) -> Option<Bound<'py, PyBytes>> {
    with_bytes(data, |data| {
        let (data, says) = frame(data, most)?;
        let refused = || PyValueError::new_err("left to Python");
        PyBytes::new_with(py, says, |content| match decompress_into(content, data) {
            Some(written) if written == says => Ok(()),
            _ => Err(refused()),
        })
        .ok()
    })
}
