//! Compaction of batches: the last offset of each key, and what each batch retains
//! (`raftlog/log/cleaning/retained_records.py`).
//!
//! A call handles the batches from a position on, and ends at the first one that Python has to
//! handle: one that fails a check, a control batch, a batch that is retained in any case, or one
//! whose records are not encoded as by the builder.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

use crate::batch::{Batch, HEADER_BYTES, Header, Walk};
use crate::build::{Fields, Writer, varint_bytes};
use crate::memory::{Grow, reused};
use crate::reader::Reader;
use crate::scan::{RECORD_BYTES_MIN, Record};

/// Largest batch that is read (`limits.READ_BATCH_BYTES_MAX`).
const BATCH_BYTES_MAX: usize = 256 * 1024 * 1024;
const CODEC_BITS: i16 = 0x07;
/// Timestamp type, transactional, control, delete horizon: bits that a reduced batch keeps.
const KEPT_BITS: i16 = 0x78;
const DELETE_HORIZON_BIT: i16 = 0x40;

/// Bytes of keys in one block. A key longer than a sixteenth of this has its own block.
const BLOCK_BYTES: usize = 1024 * 1024;
const SLOTS_MIN: usize = 1024;

/// A key of the map: its hash, its bytes in a block, and the offset of its last record.
#[derive(Clone, Copy)]
struct Entry {
    hash: u64,
    offset: i64,
    block: u32,
    start: u32,
    length: u32,
}

/// Whether a key was added.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Put {
    Added,
    /// The map has no room for another key.
    Full,
    /// There is no memory for it.
    NoMemory,
}

/// Last offset of each key of a range, in a table with open addressing.
///
/// The bound is that of the map in Python, which needs more memory. Here an entry takes 32 bytes,
/// and a slot of 4 bytes at a load of at most a half. Both are in vectors that are copied when they
/// grow, so a key takes at most 120 bytes in addition to its own.
pub struct OffsetMap {
    pub end_offset: i64,
    entry_bytes: usize,
    left: i64,
    hasher: RandomState,
    /// Ordinal of an entry plus one; 0 is free.
    slots: Vec<u32>,
    entries: Vec<Entry>,
    blocks: Vec<Vec<u8>>,
    /// Last block of many keys, and the number of its bytes that are used.
    shared: Option<u32>,
}

impl OffsetMap {
    /// Return an empty map for at most `byte_count_max` bytes of keys and entries.
    pub fn new(start_offset: i64, entry_bytes: usize, byte_count_max: i64) -> Self {
        Self {
            end_offset: start_offset,
            entry_bytes,
            left: byte_count_max,
            hasher: RandomState::new(),
            slots: Vec::new(),
            entries: Vec::new(),
            blocks: Vec::new(),
            shared: None,
        }
    }

    /// Return the number of keys.
    pub const fn len(&self) -> usize {
        self.entries.len()
    }

    /// Return the offset of a key's last record.
    #[inline]
    pub fn get(&self, key: &[u8]) -> Option<i64> {
        let found = self.ordinal(self.hasher.hash_one(key), key)?;
        self.entries.get(found).map(|entry| entry.offset)
    }

    /// Set the offset of a key's last record, which must be the last record of the range.
    #[inline]
    pub fn put(&mut self, key: &[u8], offset: i64) -> Put {
        let hash = self.hasher.hash_one(key);
        if let Some(entry) = self
            .ordinal(hash, key)
            .and_then(|found| self.entries.get_mut(found))
        {
            entry.offset = offset;
        } else {
            let count = i64::try_from(self.entry_bytes.saturating_add(key.len()));
            let count = count.unwrap_or(i64::MAX);
            if !self.entries.is_empty() && count > self.left {
                return Put::Full;
            }
            if self.insert(hash, key, offset).is_none() {
                return Put::NoMemory;
            }
            self.left = self.left.saturating_sub(count);
        }
        self.end_offset = offset.saturating_add(1);
        Put::Added
    }

    /// Return the ordinal of a key's entry.
    #[inline]
    fn ordinal(&self, hash: u64, key: &[u8]) -> Option<usize> {
        let mask = self.slots.len().checked_sub(1)?;
        let mut at = slot_of(hash, mask);
        loop {
            let found = (*self.slots.get(at)? as usize).checked_sub(1)?;
            let entry = self.entries.get(found)?;
            if entry.hash == hash && self.key(entry) == Some(key) {
                return Some(found);
            }
            at = (at + 1) & mask;
        }
    }

    #[inline]
    fn key(&self, entry: &Entry) -> Option<&[u8]> {
        let start = entry.start as usize;
        let block = self.blocks.get(entry.block as usize)?;
        block.get(start..start + entry.length as usize)
    }

    /// Add a key that the map does not have. Without memory return `None` and change nothing.
    fn insert(&mut self, hash: u64, key: &[u8], offset: i64) -> Option<()> {
        let ordinal = u32::try_from(self.entries.len() + 1).ok()?;
        if self.entries.len() + 1 > self.slots.len() / 2 {
            self.grow()?;
        }
        let (block, start) = self.store(key)?;
        self.entries.try_push(Entry {
            hash,
            offset,
            block,
            start,
            length: u32::try_from(key.len()).ok()?,
        })?;
        self.occupy(hash, ordinal)
    }

    /// Copy a key to a block with room for it; return where it is.
    fn store(&mut self, key: &[u8]) -> Option<(u32, u32)> {
        let is_large = key.len() > BLOCK_BYTES / 16;
        if !is_large
            && let Some(shared) = self.shared
            && let Some(block) = self.blocks.get_mut(shared as usize)
            && block.capacity() - block.len() >= key.len()
        {
            let start = u32::try_from(block.len()).ok()?;
            block.try_extend(key)?;
            return Some((shared, start));
        }
        let ordinal = u32::try_from(self.blocks.len()).ok()?;
        let mut block = Vec::with_room(if is_large { key.len() } else { BLOCK_BYTES })?;
        block.try_extend(key)?;
        self.blocks.try_push(block)?;
        if !is_large {
            self.shared = Some(ordinal);
        }
        Some((ordinal, 0))
    }

    /// Double the number of slots.
    fn grow(&mut self) -> Option<()> {
        let count = self.slots.len().checked_mul(2)?.max(SLOTS_MIN);
        let mut slots = Vec::new();
        slots.try_room(count)?;
        slots.try_resize(count, 0)?;
        self.slots = slots;
        let mut ordinal = 0;
        while let Some(entry) = self.entries.get(ordinal as usize) {
            let hash = entry.hash;
            ordinal += 1;
            self.occupy(hash, ordinal)?;
        }
        Some(())
    }

    /// Set the first free slot for a hash. There must be one.
    #[inline]
    fn occupy(&mut self, hash: u64, ordinal: u32) -> Option<()> {
        let mask = self.slots.len().checked_sub(1)?;
        let mut at = slot_of(hash, mask);
        while *self.slots.get(at)? != 0 {
            at = (at + 1) & mask;
        }
        *self.slots.get_mut(at)? = ordinal;
        Some(())
    }

    /// Return whether a later record of the key is mapped.
    #[inline]
    fn is_superseded(&self, key: &[u8], offset: i64) -> bool {
        self.get(key).is_some_and(|last| offset < last)
    }
}

#[inline]
#[allow(clippy::cast_possible_truncation)] // only its lowest bits count
const fn slot_of(hash: u64, mask: usize) -> usize {
    hash as usize & mask
}

/// Position at which a call begins, and what its batches are checked against.
#[derive(Clone, Copy)]
pub struct Place {
    pub position: usize,
    /// Base offset of the batch there.
    pub next_offset: i64,
    /// Leader epoch of the batches below `epoch_end_offset`; `None` if it is unknown.
    pub leader_epoch: Option<i32>,
    pub epoch_end_offset: Option<i64>,
    pub record_headers_max: usize,
    pub headers_max: usize,
}

impl Place {
    /// Return whether a batch continues the log here, with a valid header and CRC.
    fn is_at(&self, batch: &Batch<'_>) -> bool {
        let header = &batch.header;
        header.base_offset == self.next_offset
            && self
                .epoch_end_offset
                .is_none_or(|end| header.base_offset < end)
            && self
                .leader_epoch
                .is_none_or(|epoch| header.leader_epoch == epoch)
            && batch.has_valid_crc()
            && header.is_valid()
    }

    /// Move to the end of a batch.
    fn pass(&mut self, begin: usize, batch: &Batch<'_>) {
        self.position = begin + batch.end();
        self.next_offset = batch.header.last_offset() + 1;
    }

    /// Call `each` with each record of a batch and its bytes, until it returns false. Return `None`
    /// if the records fail a check.
    fn records<'a>(
        &self,
        header: &Header,
        payload: &'a [u8],
        mut each: impl FnMut(Record<'a>, &'a [u8]) -> Option<bool>,
    ) -> Option<bool> {
        let count = usize::try_from(header.record_count).ok()?;
        if count.checked_mul(RECORD_BYTES_MIN)? > payload.len() {
            return None;
        }
        let mut records = Reader::new(payload);
        let mut last_delta = -1;
        let mut header_count = 0_usize;
        for _ in 0..count {
            let before = records.rest();
            let record = Record::read(&mut records, self.record_headers_max)?;
            if !(last_delta < record.offset_delta
                && record.offset_delta <= header.last_offset_delta)
            {
                return None;
            }
            last_delta = record.offset_delta;
            header_count += record.header_count;
            if header_count > self.headers_max {
                return None;
            }
            if record.header_count > 0 {
                header_bytes(&record)?;
            }
            let bytes = before.get(..before.len() - records.left())?;
            if !each(record, bytes)? {
                return Some(false);
            }
        }
        records.is_at_end().then_some(true)
    }
}

/// Size of a record's headers, without their number. `None` if they are damaged.
fn header_bytes(record: &Record<'_>) -> Option<usize> {
    let mut fields = Reader::new(record.headers.rest());
    let mut count = 0;
    for _ in 0..record.header_count {
        count += field_bytes(Some(fields.bytes()??));
        count += field_bytes(fields.bytes()?);
    }
    fields.is_at_end().then_some(count)
}

const fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)).cast_unsigned()
}

/// Size of a key or value including its length.
fn field_bytes(field: Option<&[u8]>) -> usize {
    field.map_or(1, |bytes| {
        varint_bytes((bytes.len() as u64) << 1) + bytes.len()
    })
}

/// Size of the fields of a record as the builder encodes them, with another timestamp delta.
fn body_bytes(record: &Record<'_>, timestamp_delta: i64) -> Option<usize> {
    Some(
        1 + varint_bytes(zigzag(timestamp_delta))
            + varint_bytes(zigzag(record.offset_delta.into()))
            + field_bytes(record.key)
            + field_bytes(record.value)
            + varint_bytes((record.header_count as u64) << 1)
            + header_bytes(record)?,
    )
}

/// Return whether a record's bytes are those that the builder writes, in which no field is longer
/// than needed.
fn is_canonical(record: &Record<'_>, bytes: &[u8]) -> bool {
    body_bytes(record, record.timestamp_delta).is_some_and(|body| {
        record.attributes == 0 && varint_bytes((body as u64) << 1) + body == bytes.len()
    })
}

/// Append a record with another timestamp delta, if its bytes are canonical.
fn append_record(
    out: &mut Vec<u8>,
    record: &Record<'_>,
    bytes: &[u8],
    shift: Option<i64>,
) -> Option<()> {
    if !is_canonical(record, bytes) {
        return None;
    }
    let Some(shift) = shift else {
        return out.try_extend(bytes);
    };
    let timestamp_delta = record.timestamp_delta.checked_add(shift)?;
    let body = body_bytes(record, timestamp_delta)?;
    append_varint(out, (body as u64) << 1)?;
    out.try_push(0)?; // attributes
    append_varint(out, zigzag(timestamp_delta))?;
    // The bytes after the timestamp are the end of the record, whatever its length is now.
    let rest = body - 1 - varint_bytes(zigzag(timestamp_delta));
    out.try_extend(bytes.get(bytes.len() - rest..)?)
}

fn append_varint(out: &mut Vec<u8>, mut value: u64) -> Option<()> {
    while value >= 0x80 {
        #[allow(clippy::cast_possible_truncation)]
        out.try_push(value as u8 | 0x80)?;
        value >>= 7;
    }
    #[allow(clippy::cast_possible_truncation)]
    out.try_push(value as u8)
}

/// End of a call: its position, and whether the map is full.
pub struct Added {
    pub position: usize,
    pub next_offset: i64,
    pub is_full: bool,
}

/// Decompressed records of a batch.
enum Payload<'a, D> {
    Plain(&'a [u8]),
    Expanded(D),
}

impl<D: AsRef<[u8]>> Payload<'_, D> {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Plain(bytes) => bytes,
            Self::Expanded(bytes) => bytes.as_ref(),
        }
    }
}

/// Return the records of a batch, decompressed by `decompress` as in `scan`.
fn payload_of<'a, D, E>(
    batch: &Batch<'a>,
    begin: usize,
    decompress: &mut impl FnMut(usize, usize, i16) -> Result<Option<D>, E>,
) -> Result<Option<Payload<'a, D>>, E> {
    let header = &batch.header;
    if header.codec() == 0 {
        return Ok(Some(Payload::Plain(batch.payload())));
    }
    let end = begin + batch.end();
    let start = end - batch.payload().len();
    Ok(decompress(start, end, header.codec())?.map(Payload::Expanded))
}

/// Map the keys of the batches from a position on, as long as they are plain.
///
/// `Ok(None)` if there is no memory; some keys of the current batch may be mapped then.
pub fn add<D: AsRef<[u8]>, E>(
    map: &mut OffsetMap,
    data: &[u8],
    mut place: Place,
    mut decompress: impl FnMut(usize, usize, i16) -> Result<Option<D>, E>,
) -> Result<Option<Added>, E> {
    let begin = place.position;
    let mut is_full = false;
    for batch in Walk::new(data.get(begin..).unwrap_or_default()) {
        let header = batch.header;
        if !place.is_at(&batch) {
            break;
        }
        if !header.is_control() {
            let Some(payload) = payload_of(&batch, begin, &mut decompress)? else {
                break;
            };
            let mut has_memory = true;
            let added = place.records(&header, payload.bytes(), |record, _| {
                let offset = header.base_offset + i64::from(record.offset_delta);
                let Some(key) = record.key.filter(|_| offset >= map.end_offset) else {
                    return Some(true);
                };
                let put = map.put(key, offset);
                has_memory &= put != Put::NoMemory;
                Some(put == Put::Added)
            });
            if !has_memory {
                return Ok(None);
            }
            match added {
                Some(true) => {}
                Some(false) => {
                    is_full = true;
                    break;
                }
                None => break,
            }
        }
        place.pass(begin, &batch);
        map.end_offset = map.end_offset.max(place.next_offset);
    }
    Ok(Some(Added {
        position: place.position,
        next_offset: place.next_offset,
        is_full,
    }))
}

/// What is retained in addition to the last record of each key.
pub struct Retention {
    now_ms: i64,
    horizon_ms: i64,
    /// Last offsets of the batches that Python handles, ascending.
    given_back: Vec<i64>,
}

impl Retention {
    /// `horizon_ms` is the delete horizon for tombstones that get one now.
    pub fn new(now_ms: i64, horizon_ms: i64, mut given_back: Vec<i64>) -> Self {
        given_back.sort_unstable();
        Self {
            now_ms,
            horizon_ms,
            given_back,
        }
    }

    fn is_given_back(&self, header: &Header) -> bool {
        header.is_control() || self.given_back.binary_search(&header.last_offset()).is_ok()
    }
}

/// Adjacent batches of one epoch without a retained record.
#[derive(Clone, Copy)]
pub struct Dropped {
    pub base_offset: i64,
    pub last_offset: i64,
    pub leader_epoch: i32,
    pub max_timestamp_ms: i64,
}

impl Dropped {
    const fn of(header: &Header) -> Self {
        Self {
            base_offset: header.base_offset,
            last_offset: header.last_offset(),
            leader_epoch: header.leader_epoch,
            max_timestamp_ms: header.max_timestamp_ms,
        }
    }

    /// Return whether one empty batch can have another batch's offsets, too.
    fn takes(&self, header: &Header) -> bool {
        header.leader_epoch == self.leader_epoch
            && header
                .last_offset()
                .checked_sub(self.base_offset)
                .is_some_and(|delta| delta <= i32::MAX.into())
    }

    /// Append an empty batch with these offsets.
    fn append_to(&self, out: &mut Vec<u8>) -> Option<()> {
        let fields = Fields {
            base_offset: self.base_offset,
            leader_epoch: self.leader_epoch,
            attributes: 0,
            last_offset_delta: i32::try_from(self.last_offset - self.base_offset).ok()?,
            base_timestamp_ms: self.max_timestamp_ms,
            max_timestamp_ms: self.max_timestamp_ms,
            producer_id: -1,
            producer_epoch: -1,
            base_sequence: -1,
            record_count: 0,
        };
        append_batch(out, &fields, &[])
    }
}

fn append_batch(out: &mut Vec<u8>, fields: &Fields, payload: &[u8]) -> Option<()> {
    let start = out.len();
    out.try_resize(start + HEADER_BYTES + payload.len(), 0)?;
    Writer::new(out.get_mut(start..)?).batch(fields, payload)
}

/// Number of records and batches of a call, before and after.
#[derive(Clone, Copy, Default)]
pub struct Counts {
    pub records_read: u64,
    pub records_retained: u64,
    pub batches_read: u64,
    pub batches_retained: u64,
}

/// Batches that replace those of a call, the position of its end, and what it dropped last.
pub struct Filtered {
    pub out: Vec<u8>,
    pub position: usize,
    pub next_offset: i64,
    pub counts: Counts,
    pub dropped: Option<Dropped>,
}

/// What a batch retains.
enum Retained {
    Nothing,
    /// All of it, with unchanged bytes.
    Whole,
    /// Some of the records, or changed timestamps.
    Changed(Changed),
}

/// Records of a batch that is encoded again, not yet compressed.
struct Changed {
    payload: Vec<u8>,
    count: usize,
    /// Delete horizon that the batch gets.
    horizon_ms: Option<i64>,
}

/// Append what replaces the batches from a position on, as long as they are plain.
///
/// `compress` returns compressed records for a codec. `Ok(None)` if there is no memory.
pub fn filter<D: AsRef<[u8]>, E>(
    map: &OffsetMap,
    data: &[u8],
    mut place: Place,
    rules: &Retention,
    mut dropped: Option<Dropped>,
    mut decompress: impl FnMut(usize, usize, i16) -> Result<Option<D>, E>,
    mut compress: impl FnMut(&[u8], i16) -> Result<D, E>,
) -> Result<Option<Filtered>, E> {
    let begin = place.position;
    let Some(mut out) = reused(data.len().saturating_sub(begin)) else {
        return Ok(None);
    };
    let mut counts = Counts::default();
    let mut marks = Vec::new();
    for batch in Walk::new(data.get(begin..).unwrap_or_default()) {
        let header = batch.header;
        if rules.is_given_back(&header) || !place.is_at(&batch) {
            break;
        }
        let Some(payload) = payload_of(&batch, begin, &mut decompress)? else {
            break;
        };
        let found = retained(map, place, rules, &header, payload.bytes(), &mut marks);
        let Some((found, count)) = found else {
            break;
        };
        let mark = (out.len(), dropped);
        if !matches!(found, Retained::Nothing)
            && let Some(before) = dropped.take()
            && before.append_to(&mut out).is_none()
        {
            return Ok(None);
        }
        let added = match found {
            Retained::Nothing => match dropped.as_mut() {
                Some(before) if before.takes(&header) => {
                    before.last_offset = header.last_offset();
                    before.max_timestamp_ms = before.max_timestamp_ms.max(header.max_timestamp_ms);
                    Some(())
                }
                _ => dropped
                    .replace(Dropped::of(&header))
                    .map_or(Some(()), |before| before.append_to(&mut out)),
            },
            Retained::Whole => out.try_extend(batch.bytes),
            Retained::Changed(changed) => {
                let packed = match header.codec() {
                    0 => None,
                    codec => Some(compress(&changed.payload, codec)?),
                };
                let packed = packed.as_ref().map(AsRef::as_ref);
                append_changed(&mut out, &header, &changed, packed)
            }
        };
        if added.is_none() {
            out.truncate(mark.0);
            dropped = mark.1;
            break;
        }
        counts.batches_read += 1;
        counts.records_read += u64::from(header.record_count.cast_unsigned());
        counts.records_retained += count as u64;
        counts.batches_retained += u64::from(count > 0);
        place.pass(begin, &batch);
    }
    Ok(Some(Filtered {
        out,
        position: place.position,
        next_offset: place.next_offset,
        counts,
        dropped,
    }))
}

/// Return what a batch retains, and its number of records. `None` if Python must handle it.
fn retained(
    map: &OffsetMap,
    place: Place,
    rules: &Retention,
    header: &Header,
    payload: &[u8],
    marks: &mut Vec<u8>,
) -> Option<(Retained, usize)> {
    let has_horizon = header.attributes & DELETE_HORIZON_BIT != 0;
    let is_expired = has_horizon && rules.now_ms >= header.base_timestamp_ms;
    let mut count = 0;
    let mut has_tombstone = false;
    marks.clear();
    place.records(header, payload, |record, _| {
        let offset = header.base_offset + i64::from(record.offset_delta);
        let is_retained = offset >= map.end_offset
            || record.key.is_some_and(|key| {
                !(is_expired && record.value.is_none() || map.is_superseded(key, offset))
            });
        count += usize::from(is_retained);
        has_tombstone |= is_retained && record.value.is_none();
        marks.try_push(is_retained.into())?;
        Some(true)
    })?;
    if count == 0 {
        return Some((Retained::Nothing, 0));
    }
    let is_mapped = header.last_offset() < map.end_offset;
    let gets_horizon = has_tombstone && is_mapped && !has_horizon;
    if count == marks.len() && !gets_horizon {
        return Some((Retained::Whole, count));
    }
    let horizon_ms = gets_horizon.then_some(rules.horizon_ms);
    let shift = match horizon_ms {
        None => None,
        Some(horizon_ms) => Some(header.base_timestamp_ms.checked_sub(horizon_ms)?),
    };
    let mut changed = Vec::with_room(payload.len())?;
    let mut left = marks.iter();
    place.records(header, payload, |record, bytes| {
        if *left.next()? != 0 {
            append_record(&mut changed, &record, bytes, shift)?;
        }
        Some(true)
    })?;
    let changed = Changed {
        payload: changed,
        count,
        horizon_ms,
    };
    Some((Retained::Changed(changed), count))
}

/// Append a batch with another one's header and these records; `packed` are compressed.
fn append_changed(
    out: &mut Vec<u8>,
    header: &Header,
    changed: &Changed,
    packed: Option<&[u8]>,
) -> Option<()> {
    let packed = packed.filter(|packed| packed.len() < changed.payload.len());
    let codec = packed.map_or(0, |_| header.attributes & CODEC_BITS);
    let payload = packed.unwrap_or(&changed.payload);
    if HEADER_BYTES + payload.len() > BATCH_BYTES_MAX {
        return None;
    }
    let horizon_bit = changed.horizon_ms.map_or(0, |_| DELETE_HORIZON_BIT);
    let fields = Fields {
        base_offset: header.base_offset,
        leader_epoch: header.leader_epoch,
        attributes: header.attributes & KEPT_BITS | horizon_bit | codec,
        last_offset_delta: header.last_offset_delta,
        base_timestamp_ms: changed.horizon_ms.unwrap_or(header.base_timestamp_ms),
        max_timestamp_ms: header.max_timestamp_ms,
        producer_id: header.producer_id,
        producer_epoch: header.producer_epoch,
        base_sequence: header.base_sequence,
        record_count: i32::try_from(changed.count).ok()?,
    };
    append_batch(out, &fields, payload)
}
