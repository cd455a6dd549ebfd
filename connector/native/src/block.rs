//! Vectors of numbers that Python reads through the buffer protocol, without a copy.

use std::ffi::{c_int, c_void};

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::memory::{fitted, keep};

/// Numbers of one width.
enum Numbers {
    U8(Vec<u8>),
    I16(Vec<i16>),
    I32(Vec<i32>),
    I64(Vec<i64>),
}

/// Frozen vector; a buffer of bytes for Python.
#[pyclass(frozen, module = "raftlog._native")]
pub struct Block(Numbers);

impl Block {
    /// Return the address and the number of bytes.
    const fn span(&self) -> (*const c_void, usize) {
        match &self.0 {
            Numbers::U8(vector) => (vector.as_ptr().cast(), vector.len()),
            Numbers::I16(vector) => (vector.as_ptr().cast(), 2 * vector.len()),
            Numbers::I32(vector) => (vector.as_ptr().cast(), 4 * vector.len()),
            Numbers::I64(vector) => (vector.as_ptr().cast(), 8 * vector.len()),
        }
    }
}

#[pymethods]
impl Block {
    /// Fill a view of the bytes, for reading only.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let (start, length) = slf.get().span();
        let length = isize::try_from(length)
            .map_err(|_| PyBufferError::new_err("the block is too large for a buffer"))?;
        // SAFETY: Python passes a valid `view`, or null, which FillInfo rejects. The vector never
        // changes (the class is frozen), so `start` is valid for `length` bytes as long as the
        // object is alive. The view holds a reference to the object until it is released.
        let result = unsafe {
            ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start.cast_mut(), length, 1, flags)
        };
        if result == 0 {
            Ok(())
        } else {
            Err(PyErr::fetch(slf.py()))
        }
    }

    fn __len__(&self) -> usize {
        self.span().1
    }
}

impl Drop for Block {
    /// Keep the memory for the next call.
    fn drop(&mut self) {
        match &mut self.0 {
            Numbers::U8(vector) => keep(std::mem::take(vector)),
            Numbers::I16(vector) => keep(std::mem::take(vector)),
            Numbers::I32(vector) => keep(std::mem::take(vector)),
            Numbers::I64(vector) => keep(std::mem::take(vector)),
        }
    }
}

macro_rules! from_vector {
    ($number:ty, $variant:ident) => {
        impl From<Vec<$number>> for Block {
            /// Take the numbers, and release most of the memory that is reserved for more.
            fn from(vector: Vec<$number>) -> Self {
                Self(Numbers::$variant(fitted(vector)))
            }
        }
    };
}

from_vector!(u8, U8);
from_vector!(i16, I16);
from_vector!(i32, I32);
from_vector!(i64, I64);
