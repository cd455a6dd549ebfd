//! Encoding of records, and the header of a batch
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

/// Return the size of a record's fields, without its length field.
const fn body_bytes(value_bytes: usize, delta: usize) -> usize {
    // one byte each: attributes, timestamp delta, null key, number of headers
    4 + varint_bytes(zigzag(delta)) + varint_bytes(zigzag(value_bytes)) + value_bytes
}

/// Return the size of a record without key, timestamp and headers.
pub const fn value_bytes(byte_count: usize, delta: usize) -> usize {
    whole_bytes(body_bytes(byte_count, delta))
}

/// Return the zigzag form of a number.
#[allow(clippy::cast_sign_loss)]
const fn signed_zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

/// Return the size of a field: its length and its bytes, or the length of null.
const fn field_bytes(field: Option<&[u8]>) -> usize {
    match field {
        None => 1,
        Some(bytes) => varint_bytes(zigzag(bytes.len())) + bytes.len(),
    }
}

/// Header of a record.
pub trait Header {
    /// Return key and value.
    fn as_bytes(&self) -> (&[u8], Option<&[u8]>);
}

/// Record with a key, a timestamp or headers, or without a value.
pub struct Record<'a, H> {
    pub key: Option<&'a [u8]>,
    pub value: Option<&'a [u8]>,
    /// Relative to the base timestamp of the batch.
    pub timestamp_delta: i64,
    pub offset_delta: usize,
    pub headers: &'a [H],
}

impl<H: Header> Record<'_, H> {
    /// Return the size of the fields, without the length field.
    pub fn body_bytes(&self) -> usize {
        let header_bytes = |header: &H| {
            let (key, value) = header.as_bytes();
            field_bytes(Some(key)) + field_bytes(value)
        };
        1 + varint_bytes(signed_zigzag(self.timestamp_delta))
            + varint_bytes(zigzag(self.offset_delta))
            + field_bytes(self.key)
            + field_bytes(self.value)
            + varint_bytes(zigzag(self.headers.len()))
            + self.headers.iter().map(header_bytes).sum::<usize>()
    }
}

/// Return the size of a record whose fields have `body_bytes`.
pub const fn whole_bytes(body_bytes: usize) -> usize {
    varint_bytes(zigzag(body_bytes)) + body_bytes
}

/// Writer into memory of the computed size. `None` means that it is full.
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

    /// Write a record with only a value, at this offset delta and with the batch's timestamp.
    #[inline]
    pub fn value(&mut self, value: &[u8], delta: usize) -> Option<()> {
        self.varint(zigzag(body_bytes(value.len(), delta)))?;
        self.put(&[0, 0])?;
        self.varint(zigzag(delta))?;
        self.byte(1)?;
        self.varint(zigzag(value.len()))?;
        self.put(value)?;
        self.byte(0)
    }

    /// Write a record whose fields have `body_bytes`.
    #[inline]
    pub fn record<H: Header>(&mut self, record: &Record<'_, H>, body_bytes: usize) -> Option<()> {
        self.varint(zigzag(body_bytes))?;
        self.byte(0)?; // attributes
        self.varint(signed_zigzag(record.timestamp_delta))?;
        self.varint(zigzag(record.offset_delta))?;
        self.field(record.key)?;
        self.field(record.value)?;
        self.varint(zigzag(record.headers.len()))?;
        for header in record.headers {
            let (key, value) = header.as_bytes();
            self.field(Some(key))?;
            self.field(value)?;
        }
        Some(())
    }

    #[inline]
    fn field(&mut self, field: Option<&[u8]>) -> Option<()> {
        match field {
            None => self.byte(1), // a length of -1
            Some(bytes) => {
                self.varint(zigzag(bytes.len()))?;
                self.put(bytes)
            }
        }
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
