//! Decompression of one frame, with a context that the thread keeps.

use std::cell::RefCell;
use std::ffi::c_void;

use zstd_safe::{DCtx, zstd_sys};

const MAGIC: &[u8] = b"\x28\xb5\x2f\xfd";
/// Bytes. What is larger is left to Python: there the calls cost nothing in comparison, and memory grows with the data.
const MOST: usize = 4 << 20;
const WINDOW_LOG: u8 = 22;

thread_local! {
    static CONTEXT: RefCell<Option<DCtx<'static>>> = const { RefCell::new(None) };
}

/// The content of the frame that `data` begins with, if the frame says that it holds exactly `raw` bytes.
pub fn decompress(data: &[u8], raw: usize) -> Option<Vec<u8>> {
    if raw == 0 || raw > MOST || !data.starts_with(MAGIC) {
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
    if says != raw as u64 || length > data.len() {
        return None;
    }
    let mut content = Vec::new();
    content.try_reserve_exact(raw).ok()?;
    content.resize(raw, 0);
    let written = CONTEXT.with(|kept| {
        let mut kept = kept.try_borrow_mut().ok()?;
        if kept.is_none() {
            *kept = Some(DCtx::try_create()?);
        }
        kept.as_mut()?.decompress(&mut content[..], &data[..length]).ok()
    })?;
    (written == raw).then_some(content)
}
