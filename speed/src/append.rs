//! Appending to the file of a local log that is written to: see PartitionLog in backends/streamkit_local/log.py.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, Ordering};

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyInt, PyString};

use crate::bytes::{View, some, with_bytes};
use crate::call::call;
use crate::encode::{WHOLE, row};
use crate::file::{Place, is_unchanged};

pub const NEXT_ROW: u8 = 1;
/// Words of the head: see backends/streamkit_local/head.py.
const END: usize = 0;
const BASE: usize = 1;
const SYNCED: usize = 2;
const DIRTY: usize = 3;

#[cfg(unix)]
mod lock {
    use super::c_int;

    pub fn take(fd: c_int) -> bool {
        // SAFETY: it takes no memory.
        unsafe { libc::flock(fd, libc::LOCK_EX | libc::LOCK_NB) == 0 }
    }

    pub fn release(fd: c_int) {
        // SAFETY: it takes no memory.
        unsafe { libc::flock(fd, libc::LOCK_UN) };
    }
}

#[cfg(not(unix))]
mod lock {
    use super::c_int;

    pub fn take(_fd: c_int) -> bool {
        false
    }

    pub fn release(_fd: c_int) {}
}

/// Words of a head, which other processes read and write at the same time.
struct Words<'a> {
    end: &'a AtomicU64,
    base: &'a AtomicU64,
    synced: &'a AtomicU64,
    dirty: &'a AtomicU64,
}

impl<'a> Words<'a> {
    fn of(view: &'a View) -> Option<Self> {
        let at = |word: usize| {
            let place = view.bytes().get(8 * word..8 * word + 8)?.as_ptr().cast_mut().cast::<u64>();
            // SAFETY: the bytes are of a shared map that may be written to. They stay where they are while the view lives.
            place.is_aligned().then(|| unsafe { AtomicU64::from_ptr(place) })
        };
        Some(Words { end: at(END)?, base: at(BASE)?, synced: at(SYNCED)?, dirty: at(DIRTY)? })
    }

    fn are(&self, end: u64, base: u64) -> bool {
        self.end.load(Ordering::SeqCst) == end
            && self.base.load(Ordering::SeqCst) == base
            && self.dirty.load(Ordering::SeqCst) == 0
    }
}

/// A position in one word, with 16 bits that check it: see `seal` in backends/streamkit_local/head.py.
fn seal(position: u64) -> Option<u64> {
    (position >> 48 == 0).then(|| position << 16 | (position + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48)
}

/// Appends to a partition's log.
#[pyclass(module = "streamkit_speed", frozen)]
pub struct Appender {
    words: Py<PyAny>,
    directory: Option<String>,
    seed: u32,
    /// The system is asked to write to the disk after so many buffered bytes.
    ahead: u64,
}

#[pymethods]
impl Appender {
    #[new]
    fn new(words: Py<PyAny>, directory: &Bound<'_, PyString>, seed: u32, ahead: u64) -> Self {
        let directory = directory.to_cow().ok().map(|directory| directory.into_owned());
        Appender { words, directory, seed, ahead }
    }

    /// Appends a small row that is put with NEXT, and publishes it. The new word for the end; 0 where Python has to do it:
    /// then nothing was done, and the lock is free.
    ///
    /// `end` and `base`: the words that the head must have. `roll`: a file is full at this size. `room`: the bytes that it
    /// has for durable rows. `write`: `os.pwrite`; `sync`: makes the row durable. Their errors are raised with the lock held.
    #[allow(clippy::too_many_arguments)]
    fn append(
        &self,
        py: Python<'_>,
        write: &Bound<'_, PyAny>,
        sync: Option<&Bound<'_, PyAny>>,
        fd: c_int,
        #[pyo3(from_py_with = some)] place: Option<Place>,
        roll: u64,
        room: u64,
        #[pyo3(from_py_with = some)] end: Option<u64>,
        base: u64,
        key: &[u8],
        value: &Bound<'_, PyAny>,
    ) -> PyResult<u64> {
        let (Some(end), Some(place), Some(directory)) = (end, place, &self.directory) else { return Ok(0) };
        let position = end >> 16;
        let Some(at) = position.checked_sub(base >> 16) else { return Ok(0) };
        if at >= roll || seal(position) != Some(end) {
            return Ok(0);
        }
        let seed = self.seed;
        let Some(row) =
            with_bytes(value, |value| (value.len() <= WHOLE).then(|| row(py, position, NEXT_ROW, key, value, seed))?)
        else {
            return Ok(0);
        };
        // The system begins to write after a buffered row that ends in the next part of the file.
        let size = row.as_bytes().len();
        if at + size as u64 > if sync.is_some() { room } else { at | (self.ahead - 1) } {
            return Ok(0);
        }
        let Some(word) = position.checked_add(size as u64).and_then(seal) else { return Ok(0) };
        let Some(view) = View::writable(self.words.bind(py)) else { return Ok(0) };
        let Some(words) = Words::of(&view) else { return Ok(0) };
        if fd < 0 || !words.are(end, base) {
            return Ok(0);
        }
        // Nothing of this waits, so the interpreter is kept: to free it, and to get it back, would take as long.
        if !lock::take(fd) {
            return Ok(0);
        }
        if !words.are(end, base) || !is_unchanged(directory, place) {
            lock::release(fd);
            return Ok(0);
        }
        words.dirty.store(1, Ordering::SeqCst);
        let (fd_, mut rest, mut done) = (PyInt::new(py, fd).into_any(), row.clone(), 0);
        while done < size {
            done += call(write, [&fd_, &rest, &PyInt::new(py, at + done as u64).into_any()])?.extract::<usize>()?;
            if done < size {
                rest = PyBytes::new(py, &row.as_bytes()[done..]);
            }
        }
        if let Some(sync) = sync {
            sync.call0()?;
        }
        words.end.store(word, Ordering::SeqCst);
        if sync.is_some() {
            words.synced.store(word, Ordering::SeqCst);
        }
        words.dirty.store(0, Ordering::SeqCst);
        lock::release(fd);
        Ok(word)
    }
}
