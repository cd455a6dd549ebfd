//! Encoding of records that are only values, and the header of a batch
//! (`raftlog/records/encoding.py`, `finish_batch` in `raftlog/records/builder.py`).

use crate::batch::HEADER_BYTES;

/// Number of bytes of an unsigned varint.
pub const fn varint_bytes(value: u64) -> usize {
    (63 - (value | 1).leading_zeros() as usize) / 7 + 1
}

/// Return the zigzag form of a number that is not negative.
const fn zigzag(value: usize) -> u64 {
    (value as u64) << 1
}

/// Return the size of the fields of a record, its length field excluded.
const fn body_bytes(value_bytes: usize, delta: usize) -> usize {
    // one byte each: attributes, timestamp delta, null key, number of headers
    4 + varint_bytes(zigzag(delta)) + varint_bytes(zigzag(value_bytes)) + value_bytes
}

/// Return the size of a record without key, timestamp and headers.
pub const fn record_bytes(value_bytes: usize, delta: usize) -> usize {
    let body = body_bytes(value_bytes, delta);
    varint_bytes(zigzag(body)) + body
}

/// Writer into memory of the computed size. `None`: it is full.
pub struct Writer<'a> {
    rest: &'a mut [u8],
}

impl<'a> Writer<'a> {
    pub const fn new(out: &'a mut [u8]) -> Self {
        Self { rest: out }
    }

    /// Return whether all bytes were written.
    pub const fn is_full(&self) -> bool {
        self.rest.is_empty()
    }

    #[inline]
    fn put(&mut self, bytes: &[u8]) -> Option<()> {
        let rest = std::mem::take(&mut self.rest);
        let (place, rest) = rest.split_at_mut_checked(bytes.len())?;
        place.copy_from_slice(bytes);
        self.rest = rest;
        Some(())
    }

    #[inline]
    fn byte(&mut self, byte: u8) -> Option<()> {
        let (place, rest) = std::mem::take(&mut self.rest).split_first_mut()?;
        *place = byte;
        self.rest = rest;
        Some(())
    }

    #[inline]
    fn varint(&mut self, mut value: u64) -> Option<()> {
        while value >= 0x80 {
            #[allow(clippy::cast_possible_truncation)]
            self.byte(value as u8 | 0x80)?;
            value >>= 7;
        }
        #[allow(clippy::cast_possible_truncation)]
        self.byte(value as u8)
    }

    /// Write a record of one value, at this offset delta, with the timestamp of the batch.
    #[inline]
    pub fn record(&mut self, value: &[u8], delta: usize) -> Option<()> {
        self.varint(zigzag(body_bytes(value.len(), delta)))?;
        self.put(&[0, 0])?;
        self.varint(zigzag(delta))?;
        self.byte(1)?;
        self.varint(zigzag(value.len()))?;
        self.put(value)?;
        self.byte(0)
    }

    /// Write the header of a batch, with length and CRC.
    pub fn header(&mut self, fields: &Fields, payload: &[u8]) -> Option<()> {
        let length = i32::try_from(HEADER_BYTES - 12 + payload.len()).ok()?;
        let mut covered = [0; HEADER_BYTES - 21];
        let mut header = Writer::new(&mut covered);
        header.put(&fields.attributes.to_be_bytes())?;
        header.put(&fields.last_offset_delta.to_be_bytes())?;
        header.put(&fields.base_timestamp_ms.to_be_bytes())?;
        header.put(&fields.max_timestamp_ms.to_be_bytes())?;
        header.put(&fields.producer_id.to_be_bytes())?;
        header.put(&fields.producer_epoch.to_be_bytes())?;
        header.put(&fields.base_sequence.to_be_bytes())?;
        header.put(&fields.record_count.to_be_bytes())?;
        let crc = crc32c::crc32c_append(crc32c::crc32c(&covered), payload);
        self.put(&fields.base_offset.to_be_bytes())?;
        self.put(&length.to_be_bytes())?;
        self.put(&fields.leader_epoch.to_be_bytes())?;
        self.byte(2)?; // magic
        self.put(&crc.to_be_bytes())?;
        self.put(&covered)
    }

    /// Write a batch: its header and its records.
    pub fn batch(&mut self, fields: &Fields, payload: &[u8]) -> Option<()> {
        self.header(fields, payload)?;
        self.put(payload)
    }
}

/// Fields of a batch header that are not computed from the records.
pub struct Fields {
    pub base_offset: i64,
    pub leader_epoch: i32,
    pub attributes: i16,
    pub last_offset_delta: i32,
    pub base_timestamp_ms: i64,
    pub max_timestamp_ms: i64,
    pub producer_id: i64,
    pub producer_epoch: i16,
    pub base_sequence: i32,
    pub record_count: i32,
}
