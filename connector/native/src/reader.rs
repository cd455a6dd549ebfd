//! Forward reader of the fields of records. Every length is checked against the remaining bytes.

/// Bytes that have not been read. `None` from a method means that the bytes lack the field.
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Read `bytes` from their start.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Return whether all bytes were read.
    pub const fn is_at_end(&self) -> bool {
        self.rest.is_empty()
    }

    /// Return the number of remaining bytes.
    pub const fn left(&self) -> usize {
        self.rest.len()
    }

    /// Return the remaining bytes.
    pub const fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Read one byte.
    #[inline(always)]
    pub fn byte(&mut self) -> Option<u8> {
        let (&byte, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(byte)
    }

    /// Read `N` bytes.
    #[inline(always)]
    pub fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (array, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(*array)
    }

    /// Read `count` bytes.
    #[inline(always)]
    pub fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(count)?;
        self.rest = rest;
        Some(taken)
    }

    /// Read an unsigned 32-bit varint of at most five bytes.
    #[inline(always)]
    pub fn unsigned_varint(&mut self) -> Option<u32> {
        let raw = self.raw_varint::<5>(0x0f)?;
        u32::try_from(raw).ok()
    }

    /// Read a zigzag 32-bit varint of at most five bytes.
    #[inline]
    pub fn varint(&mut self) -> Option<i32> {
        let raw = self.unsigned_varint()?;
        Some((raw >> 1).cast_signed() ^ -(raw & 1).cast_signed())
    }

    /// Read a zigzag 64-bit varint of at most ten bytes.
    #[inline]
    pub fn varlong(&mut self) -> Option<i64> {
        let raw = self.raw_varint::<10>(0x01)?;
        Some((raw >> 1).cast_signed() ^ -(raw & 1).cast_signed())
    }

    /// Read the length of a byte string and the string; the inner `None` is null.
    #[inline(always)]
    pub fn bytes(&mut self) -> Option<Option<&'a [u8]>> {
        let length = self.varint()?;
        if length == -1 {
            return Some(None);
        }
        self.take(usize::try_from(length).ok()?).map(Some)
    }

    /// Read a varint of at most `MAX` bytes, the last of which is at most `last_max`.
    #[inline(always)]
    fn raw_varint<const MAX: usize>(&mut self, last_max: u8) -> Option<u64> {
        let (&first, rest) = self.rest.split_first()?;
        if first < 0x80 {
            self.rest = rest;
            return Some(u64::from(first));
        }
        let (&second, rest) = rest.split_first()?;
        let value = u64::from(first & 0x7f) | u64::from(second & 0x7f) << 7;
        if second < 0x80 {
            self.rest = rest;
            return Some(value);
        }
        let (value, rest) = Self::long_varint::<MAX>(value, rest, last_max)?;
        self.rest = rest;
        Some(value)
    }

    /// Read the bytes after the second one of a varint; return the remaining bytes, too.
    ///
    /// It takes no reference to a reader, so that a caller can keep the reader in registers.
    #[cold]
    fn long_varint<const MAX: usize>(
        mut value: u64,
        mut rest: &'a [u8],
        last_max: u8,
    ) -> Option<(u64, &'a [u8])> {
        for ordinal in 2..MAX {
            let (&byte, after) = rest.split_first()?;
            rest = after;
            value |= u64::from(byte & 0x7f) << (7 * ordinal);
            if byte < 0x80 {
                if ordinal == MAX - 1 && byte > last_max {
                    return None;
                }
                return Some((value, rest));
            }
        }
        None
    }
}
