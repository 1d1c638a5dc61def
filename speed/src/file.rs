//! Parts of a row's file: see backends/streamkit_local/rowfile.py.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString, PyWeakrefMethods, PyWeakrefReference};

use crate::bytes::{crc32, some, u32_at};

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

/// A value of `size` bytes, which begins at byte `value` of an open file.
#[derive(Clone, Copy)]
pub struct Content {
    pub fd: i32,
    pub value: u64,
    pub size: usize,
}

impl Content {
    /// Calls `then` with `length` bytes from byte `start`, which nobody has checked. None if they cannot be read.
    pub fn bytes<T>(&self, start: usize, length: usize, then: impl FnOnce(&[u8]) -> Option<T>) -> Option<T> {
        if length > MOST || start.checked_add(length)? > self.size {
            return None;
        }
        BUFFER.with(|kept| {
            let mut kept = kept.try_borrow_mut().ok()?;
            if kept.len() < length {
                kept.resize(length, 0);
            }
            let buffer = &mut kept[..length];
            read_at(self.fd, buffer, self.value.checked_add(start as u64)?)?;
            then(buffer)
        })
    }

    /// `length` bytes from byte `start`, or fewer at the end, that agree with `table`, the checksums of the value's
    /// blocks. None if they do not, or if Python has to read them.
    fn part(&self, table: &[u8], start: usize, length: usize) -> Option<Vec<u8>> {
        let end = start.checked_add(length)?.min(self.size);
        if start >= end {
            return None;
        }
        let first = start / BLOCK;
        let begin = first * BLOCK;
        let stop = end.div_ceil(BLOCK).checked_mul(BLOCK)?.min(self.size);
        self.bytes(begin, stop - begin, |data| {
            for (number, block) in data.chunks(BLOCK).enumerate() {
                if crc32(block, 0) != u32_at(table, 4 * (first + number))? {
                    return None;
                }
            }
            Some(data[start - begin..end - begin].to_vec())
        })
    }
}

/// `length` bytes from byte `start` of a value. None if they are damaged, or if Python has to read them.
#[pyfunction]
#[allow(clippy::too_many_arguments)]
pub fn read_part<'py>(
    py: Python<'py>,
    fd: i32,
    value: u64,
    table: &[u8],
    #[pyo3(from_py_with = some)] size: Option<usize>,
    #[pyo3(from_py_with = some)] start: Option<usize>,
    #[pyo3(from_py_with = some)] length: Option<usize>,
) -> Option<Bound<'py, PyBytes>> {
    let (size, start, length) = (size?, start?, length?);
    let content = Content { fd, value, size };
    let part = py.detach(|| content.part(table, start, length))?;
    Some(PyBytes::new(py, &part))
}

/// Counts what is read without a call of the backend.
#[pyclass(module = "streamkit_speed", frozen)]
#[derive(Default)]
pub struct Counts {
    reads: AtomicU64,
    bytes: AtomicU64,
}

#[pymethods]
impl Counts {
    #[new]
    fn new() -> Self {
        Counts::default()
    }

    #[getter]
    fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }

    #[getter]
    fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

impl Counts {
    pub fn add(&self, reads: u64, bytes: u64) {
        self.reads.fetch_add(reads, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// A row whose value is in an open file. It does not keep the file open.
#[pyclass(module = "streamkit_speed", frozen)]
pub struct OpenRow {
    file: Py<PyWeakrefReference>,
    value: u64,
    size: usize,
    pub counts: Py<Counts>,
}

/// A value, and its file, which stays open meanwhile.
pub struct Held<'py> {
    _file: Bound<'py, PyAny>,
    pub content: Content,
}

impl OpenRow {
    /// The file. None if it was closed.
    pub fn hold<'py>(&self, py: Python<'py>) -> Option<Held<'py>> {
        let file = self.file.bind(py).upgrade()?;
        let fd = file.getattr(intern!(py, "fd")).ok()?.extract().ok()?;
        let content = Content { fd, value: self.value, size: self.size };
        (fd >= 0).then_some(Held { _file: file, content })
    }
}

#[pymethods]
impl OpenRow {
    /// `file`: its `fd`, and `table`, which begins with the start of the value. `size`: of the value.
    #[new]
    fn new(file: &Bound<'_, PyAny>, size: usize, counts: Py<Counts>) -> PyResult<Self> {
        let value = file.getattr(intern!(file.py(), "table"))?.get_item(0)?.extract()?;
        Ok(OpenRow { file: PyWeakrefReference::new(file)?.unbind(), value, size, counts })
    }
}

/// See `is_at`.
#[cfg(unix)]
pub fn is_unchanged(directory: &str, (inode, device, changed): Place) -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(directory).is_ok_and(|there| {
        let time = there.mtime().checked_mul(1_000_000_000).and_then(|time| time.checked_add(there.mtime_nsec()));
        (there.ino(), there.dev(), time) == (inode, device, Some(changed))
    })
}

#[cfg(not(unix))]
pub fn is_unchanged(_directory: &str, _place: Place) -> bool {
    false
}

/// Inode, device, and the time of the last change.
pub type Place = (u64, u64, i64);

/// True if a directory has these numbers, and this time of its last change in nanoseconds. False may also mean that this
/// is not known.
#[pyfunction]
pub fn is_at(py: Python<'_>, directory: &Bound<'_, PyString>, inode: u64, device: u64, changed: i64) -> bool {
    let Ok(directory) = directory.to_cow() else { return false };
    py.detach(|| is_unchanged(&directory, (inode, device, changed)))
}
