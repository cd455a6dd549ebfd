//! Growth of vectors that returns `None` if memory is exhausted; Rust's own ends the process.
//!
//! `clippy.toml` denies the methods of `Vec` that allocate.
//!
//! Large vectors of finished calls are kept for the next calls, up to a limit, because a scan fills
//! its columns in less time than the kernel needs to map and clear new pages for them.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Smaller vectors are not kept, because the allocator has memory for them.
const KEPT_BYTES_MIN: usize = 16 * 1024;
/// Total bytes that a process keeps.
const KEPT_BYTES_MAX: usize = 16 * 1024 * 1024;
const KEPT_VECTORS_MAX: usize = 64;

static KEPT_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Element whose vectors are kept.
pub trait Kept: Sized + 'static {
    /// Return the vectors that are kept.
    fn kept() -> &'static Mutex<Vec<Vec<Self>>>;
}

macro_rules! kept {
    ($($kind:ty),*) => { $(
        impl Kept for $kind {
            fn kept() -> &'static Mutex<Vec<Vec<Self>>> {
                static VECTORS: Mutex<Vec<Vec<$kind>>> = Mutex::new(Vec::new());
                &VECTORS
            }
        }
    )* };
}

kept!(u8, i16, i32, i64, (usize, crate::batch::Header));

/// Return an empty vector with memory for `count` elements, from a finished call if there is one.
///
/// It is the smallest sufficient one, so that larger ones are left to the columns that need them. A
/// far larger one is not used. If another thread has the lock, or had it when the process was
/// forked, the memory is new.
pub fn reused<T: Kept>(count: usize) -> Option<Vec<T>> {
    let mut vector = taken(count)?;
    vector.clear();
    Some(vector)
}

/// Return a vector of `count` bytes with any values, for a caller that overwrites all of them.
pub fn scratch(count: usize) -> Option<Vec<u8>> {
    let mut vector = taken(count)?;
    vector.try_resize(count, 0)?; // bytes left by the previous call are not written again
    Some(vector)
}

/// Return an empty vector for a call that keeps its memory afterwards. It is the largest one of
/// finished calls, so that as many vectors are kept as calls run at a time, whatever their sizes.
pub fn borrowed<T: Kept>() -> Vec<T> {
    let Ok(mut vectors) = T::kept().try_lock() else {
        return Vec::new();
    };
    let largest = vectors
        .iter()
        .enumerate()
        .max_by_key(|(_, one)| one.capacity())
        .map(|(at, _)| at);
    let Some(at) = largest else {
        return Vec::new();
    };
    let mut found = vectors.remove(at);
    KEPT_BYTES.fetch_sub(found.capacity() * size_of::<T>(), Ordering::Relaxed);
    found.clear();
    found
}

/// Return a vector with memory for `count` elements, and with the elements of a finished call.
fn taken<T: Kept>(count: usize) -> Option<Vec<T>> {
    let bytes = count.saturating_mul(size_of::<T>());
    if bytes < KEPT_BYTES_MIN {
        return Vec::with_room(count);
    }
    // Up to an eighth more, so that it suffices for the next call, which needs about as much.
    let step = (bytes.checked_next_power_of_two()? / 8).max(KEPT_BYTES_MIN / 8);
    let count = bytes
        .checked_next_multiple_of(step)?
        .div_ceil(size_of::<T>());
    if let Ok(mut vectors) = T::kept().try_lock()
        && let Some((at, _)) = vectors
            .iter()
            .enumerate()
            .filter(|(_, one)| one.capacity() >= count && one.capacity() / 8 <= count)
            .min_by_key(|(_, one)| one.capacity())
    {
        let found = vectors.remove(at);
        KEPT_BYTES.fetch_sub(found.capacity() * size_of::<T>(), Ordering::Relaxed);
        return Some(found);
    }
    Vec::with_room(count)
}

/// Keep a vector's memory for the next calls, in place of the oldest ones of its type.
pub fn keep<T: Kept>(vector: Vec<T>) {
    let bytes = vector.capacity() * size_of::<T>();
    if bytes < KEPT_BYTES_MIN {
        return;
    }
    let Ok(mut vectors) = T::kept().try_lock() else {
        return;
    };
    let is_full = |count: usize| {
        count == KEPT_VECTORS_MAX || KEPT_BYTES.load(Ordering::Relaxed) + bytes > KEPT_BYTES_MAX
    };
    while is_full(vectors.len()) {
        if vectors.is_empty() {
            return;
        }
        let oldest = vectors.remove(0);
        KEPT_BYTES.fetch_sub(oldest.capacity() * size_of::<T>(), Ordering::Relaxed);
    }
    if vectors.try_push(vector).is_some() {
        KEPT_BYTES.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// Return a vector with memory for at most three times its elements; keep that of a larger one.
pub fn fitted<T: Kept + Copy>(mut vector: Vec<T>) -> Vec<T> {
    if vector.capacity() / 3 > vector.len() {
        let mut exact = Vec::new();
        if exact.try_room(vector.len()).is_some() && exact.try_extend(&vector).is_some() {
            keep(std::mem::replace(&mut vector, exact));
        } else {
            vector.shrink_to_fit();
        }
    }
    vector
}

/// Bytes of one call, whose memory is kept after the call.
pub struct Temporary(pub Vec<u8>);

impl Drop for Temporary {
    fn drop(&mut self) {
        keep(std::mem::take(&mut self.0));
    }
}

/// Vector that reserves the memory for more elements, or returns `None`.
pub trait Grow<T>: Sized {
    /// Return an empty vector with memory for `count` elements.
    fn with_room(count: usize) -> Option<Self>;
    /// Reserve memory for exactly `count` more elements.
    fn try_room(&mut self, count: usize) -> Option<()>;
    /// Append one element.
    fn try_push(&mut self, value: T) -> Option<()>;
    /// Append all elements of a slice.
    fn try_extend(&mut self, values: &[T]) -> Option<()>
    where
        T: Copy;
    /// Append the elements of all arrays.
    fn try_extend_arrays<const N: usize>(
        &mut self,
        arrays: impl ExactSizeIterator<Item = [T; N]>,
    ) -> Option<()>
    where
        T: Copy;
    /// Append copies of `value`, or remove elements, up to a length of `count`.
    fn try_resize(&mut self, count: usize, value: T) -> Option<()>
    where
        T: Copy;
}

#[allow(clippy::disallowed_methods)] // after a reservation
impl<T> Grow<T> for Vec<T> {
    fn with_room(count: usize) -> Option<Self> {
        let mut vector = Self::new();
        vector.try_room(count)?;
        Some(vector)
    }

    fn try_room(&mut self, count: usize) -> Option<()> {
        self.try_reserve_exact(count).ok()
    }

    #[inline(always)]
    fn try_push(&mut self, value: T) -> Option<()> {
        if self.len() == self.capacity() {
            self.try_reserve(1).ok()?;
        }
        self.push(value);
        Some(())
    }

    #[inline(always)]
    fn try_extend(&mut self, values: &[T]) -> Option<()>
    where
        T: Copy,
    {
        if values.len() > self.capacity() - self.len() {
            self.try_reserve(values.len()).ok()?;
        }
        self.extend_from_slice(values);
        Some(())
    }

    #[inline(always)]
    fn try_extend_arrays<const N: usize>(
        &mut self,
        arrays: impl ExactSizeIterator<Item = [T; N]>,
    ) -> Option<()>
    where
        T: Copy,
    {
        let count = arrays.len().checked_mul(N)?;
        if count > self.capacity() - self.len() {
            self.try_reserve(count).ok()?;
        }
        for array in arrays {
            self.extend_from_slice(&array);
        }
        Some(())
    }

    #[inline]
    fn try_resize(&mut self, count: usize, value: T) -> Option<()>
    where
        T: Copy,
    {
        self.try_reserve(count.saturating_sub(self.len())).ok()?;
        self.resize(count, value);
        Some(())
    }
}
