//! Checked parts of a row's file: see backends/streamkit_local/rowfile.py.

use std::cell::RefCell;

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::bytes::{crc32, u32_at};

const BLOCK: usize = 4096;
/// Bytes. A longer part is left to Python: there the calls cost nothing in comparison.
const MOST: usize = 256 << 10;

thread_local! {
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

#[cfg(unix)]
fn read_at(fd: i32, buffer: &mut [u8], at: u64) -> Option<()> {
    use std::mem::ManuallyDrop;
    use std::os::fd::FromRawFd;
    use std::os::unix::fs::FileExt;
    if fd < 0 {
        return None;
    }
    // SAFETY: the caller keeps the descriptor open, and it is not closed here.
    let file = ManuallyDrop::new(unsafe { std::fs::File::from_raw_fd(fd) });
    file.read_exact_at(buffer, at).ok()
}

#[cfg(not(unix))]
fn read_at(_fd: i32, _buffer: &mut [u8], _at: u64) -> Option<()> {
    None
}

/// `length` bytes from byte `start` of a value of `size` bytes, which begins at byte `value` of a file. `table` has the
/// checksums of its blocks. None if they are wrong, or if Python has to read it.
#[pyfunction]
#[allow(clippy::too_many_arguments)]
pub fn read_part<'py>(
    py: Python<'py>,
    fd: i32,
    value: u64,
    table: &[u8],
    size: usize,
    start: usize,
    length: usize,
) -> Option<Bound<'py, PyBytes>> {
    let end = start.checked_add(length)?.min(size);
    if start >= end || end - start > MOST {
        return None;
    }
    let first = start / BLOCK;
    let begin = first * BLOCK;
    let stop = end.div_ceil(BLOCK).checked_mul(BLOCK)?.min(size);
    let at = value.checked_add(begin as u64)?;
    BUFFER.with(|kept| {
        let mut kept = kept.try_borrow_mut().ok()?;
        if kept.len() < stop - begin {
            kept.resize(stop - begin, 0);
        }
        let buffer = &mut kept[..stop - begin];
        py.detach(|| {
            read_at(fd, buffer, at)?;
            buffer.chunks(BLOCK).enumerate().try_for_each(|(number, block)| {
                (crc32(block, 0) == u32_at(table, 4 * (first + number))?).then_some(())
            })
        })?;
        Some(PyBytes::new(py, &buffer[start - begin..end - begin]))
    })
}
