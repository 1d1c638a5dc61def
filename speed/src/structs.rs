//! Instances of streamkit's immutable classes, which msgspec makes.

use std::mem::size_of;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple, PyType};

use crate::call::call;

/// A class and, where they are known, the places of its `N` fields in an instance.
pub struct Struct<const N: usize> {
    class: Py<PyType>,
    offsets: Option<[usize; N]>,
}

impl<const N: usize> Struct<N> {
    pub fn new(py: Python<'_>, class: Py<PyType>) -> PyResult<Self> {
        let offsets = offsets(class.bind(py))?;
        Ok(Struct { class, offsets })
    }

    /// True if instances are made without a call of the class.
    pub fn is_direct(&self) -> bool {
        self.offsets.is_some()
    }

    /// All fields of an instance of this very class. None for another object, or where their places are not known.
    pub fn fields<'py>(&self, object: &Bound<'py, PyAny>) -> Option<[Bound<'py, PyAny>; N]> {
        self.borrowed(object).map(|fields| fields.map(|field| field.to_owned()))
    }

    /// The same without references of their own.
    pub fn borrowed<'a, 'py>(&self, object: &'a Bound<'py, PyAny>) -> Option<[Borrowed<'a, 'py, PyAny>; N]> {
        let (py, offsets) = (object.py(), self.offsets.as_ref()?);
        if object.get_type_ptr() != self.class.bind(py).as_type_ptr() {
            return None;
        }
        let places = offsets.map(|offset| {
            // SAFETY: each of these places of an instance holds a field, or null.
            unsafe { object.as_ptr().byte_add(offset).cast::<*mut ffi::PyObject>().read() }
        });
        if places.iter().any(|place| place.is_null()) {
            return None;
        }
        // SAFETY: the instance, which is immutable, keeps its fields.
        Some(places.map(|place| unsafe { Borrowed::from_ptr(py, place) }))
    }

    /// An instance with all of its fields.
    pub fn make<'py>(&self, py: Python<'py>, values: [Bound<'py, PyAny>; N]) -> PyResult<Bound<'py, PyAny>> {
        let class = self.class.bind(py);
        match &self.offsets {
            // SAFETY: `offsets` has found that each of these places holds a field, and that there is nothing else.
            Some(offsets) => unsafe { filled(class, offsets, values) },
            None => call(class, values.each_ref()),
        }
    }
}

/// An instance whose fields are the values at the offsets.
///
/// # Safety
/// The offsets are those of all fields of the class, and an instance has nothing else.
unsafe fn filled<'py, const N: usize>(
    class: &Bound<'py, PyType>,
    offsets: &[usize; N],
    values: [Bound<'py, PyAny>; N],
) -> PyResult<Bound<'py, PyAny>> {
    unsafe {
        let made: *mut ffi::PyObject = ffi::PyObject_New(class.as_type_ptr());
        if made.is_null() {
            return Err(PyErr::fetch(class.py()));
        }
        for (offset, value) in offsets.iter().zip(values) {
            made.byte_add(*offset).cast::<*mut ffi::PyObject>().write(value.into_ptr());
        }
        Ok(Bound::from_owned_ptr(class.py(), made))
    }
}

/// The places of a class's fields: looked for in an instance, and tried. None if an instance may have anything beside
/// them, or if one that is made in this way differs from one that the class makes.
fn offsets<const N: usize>(class: &Bound<'_, PyType>) -> PyResult<Option<[usize; N]>> {
    let py = class.py();
    // SAFETY: the type lives.
    let flags = unsafe { ffi::PyType_GetFlags(class.as_type_ptr()) };
    let begin = size_of::<ffi::PyObject>();
    let end = begin + N * size_of::<*mut ffi::PyObject>();
    let Ok(names) = class.getattr("__struct_fields__") else { return Ok(None) };
    let Ok(names) = names.cast_into::<PyTuple>() else { return Ok(None) };
    let plain = flags & ffi::Py_TPFLAGS_HAVE_GC == 0
        && class.getattr("__basicsize__")?.extract::<usize>()? == end
        && class.getattr("__itemsize__")?.extract::<usize>()? == 0
        && names.len() == N
        && !class.hasattr("__post_init__")?;
    if !plain {
        return Ok(None);
    }
    let object = py.import("builtins")?.getattr("object")?;
    let mut values = Vec::with_capacity(N);
    for _ in 0..N {
        values.push(object.call0()?);
    }
    let Ok(values): Result<[Bound<'_, PyAny>; N], _> = values.try_into() else { return Ok(None) };
    let example = call(class, values.each_ref())?;
    let mut offsets = [0; N];
    for offset in (begin..end).step_by(size_of::<*mut ffi::PyObject>()) {
        // SAFETY: an instance has `__basicsize__` bytes.
        let held = unsafe { example.as_ptr().byte_add(offset).cast::<*mut ffi::PyObject>().read() };
        match values.iter().position(|value| value.as_ptr() == held) {
            Some(at) => offsets[at] = offset,
            None => return Ok(None),
        }
    }
    if offsets.contains(&0) {
        return Ok(None);
    }
    // SAFETY: there are as many places as fields. Each place holds a field, and each field has a place.
    let made = unsafe { filled(class, &offsets, values.clone()) }?;
    for (name, value) in names.iter().zip(&values) {
        let Ok(name) = name.cast_into::<PyString>() else { return Ok(None) };
        if !made.getattr(name)?.is(value) {
            return Ok(None);
        }
    }
    Ok(Some(offsets))
}
