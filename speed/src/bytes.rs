//! The bytes of Python objects, and little-endian integers in them.

use std::ffi::c_int;
use std::slice;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// A read-only buffer that stays valid while this lives. None for an object that is none, or that somebody may change.
pub struct View {
    buffer: ffi::Py_buffer,
}

impl View {
    pub fn new(object: &Bound<'_, PyAny>) -> Option<View> {
        View::any(object).filter(|view| view.buffer.readonly != 0)
    }

    /// Of memory that others change at the same time.
    pub fn writable(object: &Bound<'_, PyAny>) -> Option<View> {
        View::any(object).filter(|view| view.buffer.readonly == 0)
    }

    /// Of an object that nobody else has.
    pub fn any(object: &Bound<'_, PyAny>) -> Option<View> {
        let mut buffer = ffi::Py_buffer::new();
        // SAFETY: `buffer` is released in drop, and only if this succeeds. PyBUF_SIMPLE: contiguous bytes.
        unsafe {
            if ffi::PyObject_GetBuffer(object.as_ptr(), &mut buffer, ffi::PyBUF_SIMPLE as c_int) != 0 {
                ffi::PyErr_Clear();
                return None;
            }
        }
        Some(View { buffer })
    }

    pub fn bytes(&self) -> &[u8] {
        if self.buffer.len <= 0 {
            return &[];
        }
        // SAFETY: the exporter keeps the bytes where they are until the buffer is released.
        unsafe { slice::from_raw_parts(self.buffer.buf.cast::<u8>(), self.buffer.len as usize) }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // SAFETY: filled by PyObject_GetBuffer. Values of this type live in functions that hold the GIL.
        unsafe { ffi::PyBuffer_Release(&mut self.buffer) }
    }
}

/// The bytes of an object for as long as it is borrowed.
pub fn bytes_of<'a>(object: Borrowed<'a, '_, PyBytes>) -> &'a [u8] {
    // SAFETY: bytes stay where they are, and never change.
    unsafe {
        let start = ffi::PyBytes_AsString(object.as_ptr()).cast::<u8>();
        slice::from_raw_parts(start, ffi::PyBytes_Size(object.as_ptr()) as usize)
    }
}

/// Python's bytes while they are written, without filling them with zeros before.
pub struct Writer<'py> {
    made: Bound<'py, PyBytes>,
    at: *mut u8,
    left: usize,
}

impl<'py> Writer<'py> {
    /// Of `length` bytes.
    pub fn new(py: Python<'py>, length: usize) -> Option<Self> {
        let length_ = ffi::Py_ssize_t::try_from(length).ok()?;
        // SAFETY: it returns new bytes of this length, which nobody else has, or null with an error.
        unsafe {
            let made = ffi::PyBytes_FromStringAndSize(std::ptr::null(), length_);
            let made = Bound::from_owned_ptr_or_err(py, made).ok()?.cast_into_unchecked::<PyBytes>();
            let at = ffi::PyBytes_AsString(made.as_ptr()).cast();
            Some(Writer { made, at, left: length })
        }
    }

    #[inline]
    pub fn add(&mut self, data: &[u8]) {
        assert!(data.len() <= self.left);
        // SAFETY: there is room for `data`, which is not part of it.
        unsafe {
            self.at.copy_from_nonoverlapping(data.as_ptr(), data.len());
            self.at = self.at.add(data.len());
        }
        self.left -= data.len();
    }

    /// The bytes, all of which were added.
    pub fn finish(self) -> Bound<'py, PyBytes> {
        assert_eq!(self.left, 0);
        self.made
    }
}

/// Calls `then` with the bytes of an object. None if it has none that nobody can change.
pub fn with_bytes<T>(object: &Bound<'_, PyAny>, then: impl FnOnce(&[u8]) -> Option<T>) -> Option<T> {
    if let Ok(bytes) = object.cast::<PyBytes>() {
        return then(bytes.as_bytes());
    }
    View::new(object).and_then(|view| then(view.bytes()))
}

/// A number that fits, or None. On a machine of 32 bits, fewer numbers are sizes than in Python.
pub fn some<'py, T: for<'a> FromPyObject<'a, 'py>>(object: &Bound<'py, PyAny>) -> PyResult<Option<T>> {
    Ok(object.extract().ok())
}

pub fn u16_at(data: &[u8], at: usize) -> Option<usize> {
    Some(u16::from_le_bytes(data.get(at..at.checked_add(2)?)?.try_into().ok()?) as usize)
}

pub fn u32_at(data: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(data.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

pub fn u64_at(data: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(data.get(at..at.checked_add(8)?)?.try_into().ok()?))
}

/// Ends the use of the upper halves of the vector registers, which copies of the C library may leave dirty: until then the
/// SSE instructions of checksums and decompression are slow. Measured: 0.1 µs for a checksum of 200 bytes.
pub fn end_avx() {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx")]
        #[allow(unused_unsafe)]
        unsafe fn end() {
            unsafe { std::arch::x86_64::_mm256_zeroupper() }
        }
        if std::arch::is_x86_feature_detected!("avx") {
            // SAFETY: the processor has AVX, and by the calling convention no function keeps anything in these halves.
            unsafe { end() }
        }
    }
}

/// CRC-32 with zlib's polynomial, going on from `start`.
pub fn crc32(data: &[u8], start: u32) -> u32 {
    end_avx();
    let mut hasher = crc32fast::Hasher::new_with_initial(start);
    hasher.update(data);
    hasher.finalize()
}
