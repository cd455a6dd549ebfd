//! Rows of a column, gathered by the numbers of its distinct values, in Arrow's layout
//! (`state/raftlog_state/replay/distinct_values.py`).

use crate::memory::{Grow, Temporary, reused};

/// Code of a null.
const NULL: i32 = -1;
/// Rows per byte of a bitmap.
const BITS: usize = 8;

/// Distinct values: the end of each one in `data`, after a first end, in units of `element_bytes`.
pub struct Values {
    ends: Temporary,
    data: Temporary,
    element_bytes: usize,
}

/// Bitmap (`None`: no row is null), ends and data of rows.
pub struct Gathered {
    pub valid: Option<Vec<u8>>,
    pub ends: Vec<i32>,
    pub data: Vec<u8>,
}

impl Values {
    /// `ends` are 32-bit numbers in native byte order. They are checked when a row is gathered.
    pub const fn new(ends: Temporary, data: Temporary, element_bytes: usize) -> Self {
        Self {
            ends,
            data,
            element_bytes,
        }
    }

    /// Return a row for each of `codes`, 32-bit numbers in native byte order.
    ///
    /// `None` if a code has no value, the values are inconsistent, the rows exceed 32-bit offsets,
    /// or there is no memory.
    pub fn gather(&self, codes: &[u8]) -> Option<Gathered> {
        let (codes, []) = codes.as_chunks::<4>() else {
            return None;
        };
        let mut valid = reused(codes.len().div_ceil(BITS))?;
        let mut ends = reused(codes.len().checked_add(1)?)?;
        let (mut end, mut null_count) = (0_i32, 0_usize);
        ends.try_push(end)?;
        for some in codes.chunks(BITS) {
            let mut bits = 0_u8;
            for (bit, code) in some.iter().enumerate() {
                let (first, last) = self.bounds(*code)?.unwrap_or((0, 0));
                if i32::from_ne_bytes(*code) == NULL {
                    null_count += 1;
                } else {
                    bits |= 1 << bit;
                }
                end = end.checked_add(i32::try_from(last.checked_sub(first)?).ok()?)?;
                ends.try_push(end)?;
            }
            valid.try_push(bits)?;
        }
        let mut data = reused(usize::try_from(end).ok()?.checked_mul(self.element_bytes)?)?;
        for code in codes {
            if let Some((first, last)) = self.bounds(*code)? {
                let begin = first.checked_mul(self.element_bytes)?;
                let end = last.checked_mul(self.element_bytes)?;
                data.try_extend(self.data.0.get(begin..end)?)?;
            }
        }
        Some(Gathered {
            valid: (null_count > 0).then_some(valid),
            ends,
            data,
        })
    }

    /// Return where a code's value begins and ends; the inner `None` is a null.
    #[inline]
    fn bounds(&self, code: [u8; 4]) -> Option<Option<(usize, usize)>> {
        let code = i32::from_ne_bytes(code);
        if code == NULL {
            return Some(None);
        }
        let at = usize::try_from(code).ok()?;
        let ends = self.ends.0.as_chunks::<4>().0;
        let (first, last) = (ends.get(at)?, ends.get(at.checked_add(1)?)?);
        let number = |end: &[u8; 4]| usize::try_from(i32::from_ne_bytes(*end)).ok();
        Some(Some((number(first)?, number(last)?)))
    }
}
