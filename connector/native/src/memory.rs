//! Growth of vectors that returns `None` where memory is exhausted; Rust's own ends the process.
//!
//! `clippy.toml` denies the methods of `Vec` that allocate.

/// Vector that has or gets the memory for more elements, or refuses them.
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

    #[inline]
    fn try_push(&mut self, value: T) -> Option<()> {
        if self.len() == self.capacity() {
            self.try_reserve(1).ok()?;
        }
        self.push(value);
        Some(())
    }

    #[inline]
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
