//! Headers of record batches (magic 2), and the walk from one batch to the next.
//!
//! Kafka: `DefaultRecordBatch`. The checks are those of `raftlog/records/header.py`. This module
//! decides only whether a batch passes them; Python finds the reason if it does not.

use crate::memory::{Grow, borrowed};
use crate::reader::Reader;

/// Size of a batch header.
pub const HEADER_BYTES: usize = 61;
/// Base offset and length, which the length does not include.
const OVERHEAD_BYTES: usize = 12;
/// First byte that the CRC covers.
const CRC_START: usize = 21;
const MAGIC: u8 = 2;
const LENGTH_MIN: i32 = 49;
/// A larger length is corruption (`limits.READ_BATCH_BYTES_MAX`).
const LENGTH_MAX: i32 = 256 * 1024 * 1024 - 12;
const CODEC_BITS: i16 = 0x07;
const CODEC_MAX: i16 = 4;
const TIMESTAMP_TYPE_BIT: i16 = 0x08;
const TRANSACTIONAL_BIT: i16 = 0x10;
const CONTROL_BIT: i16 = 0x20;

/// Fields of a batch header.
#[derive(Clone, Copy)]
pub struct Header {
    pub base_offset: i64,
    pub length: i32,
    pub leader_epoch: i32,
    pub magic: u8,
    pub crc: u32,
    pub attributes: i16,
    pub last_offset_delta: i32,
    pub base_timestamp_ms: i64,
    pub max_timestamp_ms: i64,
    pub producer_id: i64,
    pub producer_epoch: i16,
    pub base_sequence: i32,
    pub record_count: i32,
}

impl Header {
    /// Read the fields at the start of `bytes`.
    #[inline]
    fn read(bytes: &[u8]) -> Option<Self> {
        let mut fields = Reader::new(bytes.first_chunk::<HEADER_BYTES>()?);
        Some(Self {
            base_offset: i64::from_be_bytes(fields.array()?),
            length: i32::from_be_bytes(fields.array()?),
            leader_epoch: i32::from_be_bytes(fields.array()?),
            magic: fields.byte()?,
            crc: u32::from_be_bytes(fields.array()?),
            attributes: i16::from_be_bytes(fields.array()?),
            last_offset_delta: i32::from_be_bytes(fields.array()?),
            base_timestamp_ms: i64::from_be_bytes(fields.array()?),
            max_timestamp_ms: i64::from_be_bytes(fields.array()?),
            producer_id: i64::from_be_bytes(fields.array()?),
            producer_epoch: i16::from_be_bytes(fields.array()?),
            base_sequence: i32::from_be_bytes(fields.array()?),
            record_count: i32::from_be_bytes(fields.array()?),
        })
    }

    /// Return the last offset; it wraps in a header that was not checked.
    pub const fn last_offset(&self) -> i64 {
        self.base_offset.wrapping_add(self.last_offset_delta as i64)
    }

    /// Return the compression codec, 0 for none.
    pub const fn codec(&self) -> i16 {
        self.attributes & CODEC_BITS
    }

    /// Return whether the batch contains control records.
    pub const fn is_control(&self) -> bool {
        self.attributes & CONTROL_BIT != 0
    }

    /// Return whether the batch is part of its producer's transaction.
    pub const fn is_transactional(&self) -> bool {
        self.attributes & TRANSACTIONAL_BIT != 0
    }

    /// Return whether the log, not the producer, set the timestamp.
    pub const fn is_log_append_time(&self) -> bool {
        self.attributes & TIMESTAMP_TYPE_BIT != 0
    }

    /// Return whether the fields that the CRC covers, and the base offset, are possible.
    #[inline]
    pub fn is_valid(&self) -> bool {
        (0..=i64::MAX - i64::from(i32::MAX)).contains(&self.base_offset)
            && self.codec() <= CODEC_MAX
            && self.last_offset_delta >= 0
            && self.record_count >= 0
            && i64::from(self.record_count) <= i64::from(self.last_offset_delta) + 1
    }
}

/// Whole batch in a buffer. Length and magic are valid; nothing else is checked.
#[derive(Clone, Copy)]
pub struct Batch<'a> {
    /// Position of the first byte in the buffer.
    pub position: usize,
    pub header: Header,
    pub bytes: &'a [u8],
}

impl<'a> Batch<'a> {
    /// Return whether the CRC matches.
    #[inline]
    pub fn has_valid_crc(&self) -> bool {
        self.bytes
            .get(CRC_START..)
            .is_some_and(|covered| crc32c::crc32c(covered) == self.header.crc)
    }

    /// Return the records, which are compressed if the header says so.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        self.bytes.get(HEADER_BYTES..).unwrap_or_default()
    }

    /// Return the position after the batch.
    pub const fn end(&self) -> usize {
        self.position + self.bytes.len()
    }
}

/// Walk of the batches of a buffer, up to an incomplete one or an invalid length or magic.
pub struct Walk<'a> {
    data: &'a [u8],
    position: usize,
}

impl<'a> Walk<'a> {
    /// Walk `data` from its start, which must be the start of a batch.
    pub const fn new(data: &'a [u8]) -> Self {
        Self { data, position: 0 }
    }

    /// Return the position after the last batch that was returned.
    pub const fn position(&self) -> usize {
        self.position
    }
}

impl<'a> Iterator for Walk<'a> {
    type Item = Batch<'a>;

    #[inline]
    fn next(&mut self) -> Option<Batch<'a>> {
        let rest = self.data.get(self.position..)?;
        let header = Header::read(rest)?;
        if !(LENGTH_MIN..=LENGTH_MAX).contains(&header.length) || header.magic != MAGIC {
            return None;
        }
        let length = usize::try_from(header.length).ok()?;
        let bytes = rest.get(..OVERHEAD_BYTES + length)?;
        let position = self.position;
        self.position += bytes.len();
        Some(Batch {
            position,
            header,
            bytes,
        })
    }
}

/// Reason why a walk or a scan ended. Python reads the numbers.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Stop {
    /// The whole buffer was read.
    End = 0,
    /// The next bytes are not a whole batch, or have an invalid length or magic.
    Unreadable = 1,
    /// The next batch fails a check.
    Damaged = 2,
    /// The base offset of the next batch is at or above the end of the range.
    EndOffset = 3,
    /// A limit was reached.
    Full = 4,
}

/// Offsets to return. Leading batches below `start` are skipped; `end` ends the walk.
#[derive(Clone, Copy)]
pub struct Range {
    pub start: Option<i64>,
    pub end: Option<i64>,
}

impl Range {
    /// Return whether the range begins after the batch.
    #[inline]
    pub fn is_after(&self, header: &Header) -> bool {
        self.start.is_some_and(|start| header.last_offset() < start)
    }

    /// Return whether the range ends at the batch or before it.
    #[inline]
    pub fn is_before(&self, header: &Header) -> bool {
        self.end.is_some_and(|end| header.base_offset >= end)
    }
}

/// Which checks a walk of headers makes, and in which order.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Checks {
    /// Header fields of every batch, before the range is applied.
    Headers,
    /// CRC, then header fields, of each batch in the range.
    Crcs,
}

/// Batches that a walk or a scan returned, and why it ended.
pub struct Walked {
    pub headers: Vec<(usize, Header)>,
    pub end_position: usize,
    pub stop: Stop,
}

/// Walk the batches of `data` that are in `range`. `None` if there is no memory.
pub fn walk(data: &[u8], range: Range, checks: Checks) -> Option<Walked> {
    let mut batches = Walk::new(data);
    let mut headers = borrowed();
    for batch in batches.by_ref() {
        let header = batch.header;
        let stop = |stop| (batch.position, stop);
        let ended = if checks == Checks::Headers && !header.is_valid() {
            Some(stop(Stop::Damaged))
        } else if range.is_before(&header) {
            Some(stop(Stop::EndOffset))
        } else if headers.is_empty() && range.is_after(&header) {
            continue;
        } else if checks == Checks::Crcs && !(batch.has_valid_crc() && header.is_valid()) {
            Some(stop(Stop::Damaged))
        } else {
            None
        };
        if let Some((end_position, stop)) = ended {
            return Some(Walked {
                headers,
                end_position,
                stop,
            });
        }
        headers.try_push((batch.position, header))?;
    }
    let end_position = batches.position();
    let stop = end_of(data, end_position);
    Some(Walked {
        headers,
        end_position,
        stop,
    })
}

/// Return why a walk that reached `position` has no more batches.
pub const fn end_of(data: &[u8], position: usize) -> Stop {
    if position == data.len() {
        Stop::End
    } else {
        Stop::Unreadable
    }
}
