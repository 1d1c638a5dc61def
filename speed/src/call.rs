//! Calls of Python classes with positional arguments.

use std::ffi::{c_char, c_void};
use std::ptr;
use std::sync::OnceLock;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

type Vectorcall = unsafe extern "C" fn(
    *mut ffi::PyObject,
    *const *mut ffi::PyObject,
    usize,
    *mut ffi::PyObject,
) -> *mut ffi::PyObject;

/// CPython 3.11 has this function, and later versions have it in the stable ABI. An extension for the stable ABI of 3.11
/// may not name it, so it is looked for when it is first needed.
#[cfg(unix)]
fn vectorcall() -> Option<Vectorcall> {
    unsafe extern "C" {
        fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
    }
    static FOUND: OnceLock<Option<Vectorcall>> = OnceLock::new();
    // RTLD_DEFAULT: null on Linux, -2 on macOS.
    let everywhere = if cfg!(target_vendor = "apple") { -2isize as *mut c_void } else { ptr::null_mut() };
    // SAFETY: the signature is that of CPython since 3.9. Without the function the tuple of `call` does the same.
    *FOUND.get_or_init(|| unsafe {
        let found = dlsym(everywhere, c"PyObject_Vectorcall".as_ptr());
        (!found.is_null()).then(|| std::mem::transmute::<*mut c_void, Vectorcall>(found))
    })
}

#[cfg(not(unix))]
fn vectorcall() -> Option<Vectorcall> {
    None
}

/// `class(*arguments)`.
pub fn call<'py, const N: usize>(
    class: &Bound<'py, PyAny>,
    arguments: [&Bound<'py, PyAny>; N],
) -> PyResult<Bound<'py, PyAny>> {
    let py = class.py();
    let Some(vectorcall) = vectorcall() else {
        return class.call1(PyTuple::new(py, arguments)?);
    };
    let pointers = arguments.map(|argument| argument.as_ptr());
    // SAFETY: all of them live until the call returns. It returns a new reference, or null with an error.
    unsafe { Bound::from_owned_ptr_or_err(py, vectorcall(class.as_ptr(), pointers.as_ptr(), N, ptr::null_mut())) }
}
