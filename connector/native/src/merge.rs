//! Merge of records that each change some fields of a key: successive records of a key become one
//! (`state/raftlog_state/records/merged_records.py`).
//!
//! A record is merged if all its fields except those of the key are tagged fields of the request,
//! none of them has its default, and each number is within its bounds. Whatever the state before it
//! is, the next record of the field then replaces its effect. Every other record stays separate,
//! with its bytes.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

use crate::memory::{Grow, reused};
use crate::program::{
    FIELDS_MAX, Field, Program, Rows, Shape, Struct, read_frame, read_integer, read_length,
};
use crate::reader::Reader;

/// Maximum number of fields that are merged.
const MERGED_MAX: usize = 8;
/// Bytes of a frame.
const FRAME_BYTES: usize = 3;
/// Number of words of a key.
const KEY_WORDS: usize = 3;
const WORD_BYTES: usize = size_of::<u64>();
const SLOTS_MIN: usize = 1024;
/// Value for no row and no run.
const NONE: i32 = -1;

/// Which records are merged.
pub struct Request {
    api_key: u8,
    /// Size of the key, with which a record begins.
    key_bytes: usize,
    /// For each field by its place: its ordinal among the merged ones, and the bounds if it is a
    /// number.
    fields: [Option<(usize, i64, i64)>; FIELDS_MAX],
}

/// Records after the merge, in the order of their first rows: Arrow's offsets and bytes, rows, and
/// the numbers of merged records, in total and with the first of the fields.
pub struct Merged {
    pub ends: Vec<i32>,
    pub data: Vec<u8>,
    pub first_rows: Vec<i32>,
    pub last_rows: Vec<i32>,
    pub counts: Vec<i32>,
    pub set_counts: Vec<i32>,
}

/// Bytes of each field that a record sets.
type Set<'a> = [Option<&'a [u8]>; MERGED_MAX];

/// Records of a key that are one record after the merge. It is as small as a line of the
/// processor's cache, since the next record nearly always has another key.
#[repr(align(64))]
struct Run {
    /// The last record that sets each field.
    set_rows: [i32; MERGED_MAX],
    first_row: i32,
    last_row: i32,
    count: i32,
    set_count: i32,
    version: u8,
}

/// The run of each key that its next record continues, in a table with open addressing.
struct OpenRuns {
    seeds: [u64; KEY_WORDS],
    /// Ordinal of an entry plus one; 0 is free.
    slots: Vec<u32>,
    entries: Vec<Entry>,
}

type Key = [u64; KEY_WORDS];

struct Entry {
    key: Key,
    /// `NONE`: the next record begins another run.
    run: i32,
}

impl OpenRuns {
    fn new() -> Self {
        let hasher = RandomState::new();
        Self {
            // Odd, so that no factor is zero.
            seeds: [0, 1, 2].map(|ordinal: u64| hasher.hash_one(ordinal) | 1),
            slots: Vec::new(),
            entries: Vec::new(),
        }
    }

    /// Return the entry of a key; a new entry has no run. `None` if there is no memory.
    #[inline]
    fn entry(&mut self, key: Key) -> Option<&mut Entry> {
        if self.entries.len() >= self.slots.len() / 2 {
            self.grow()?;
        }
        let mut at = self.slot_of(&key);
        let mask = self.slots.len().checked_sub(1)?;
        let ordinal = loop {
            let slot = self.slots.get_mut(at)?;
            let Some(ordinal) = (*slot as usize).checked_sub(1) else {
                *slot = u32::try_from(self.entries.len().checked_add(1)?).ok()?;
                self.entries.try_push(Entry { key, run: NONE })?;
                break self.entries.len().checked_sub(1)?;
            };
            if self.entries.get(ordinal)?.key == key {
                break ordinal;
            }
            at = (at + 1) & mask;
        };
        self.entries.get_mut(ordinal)
    }

    /// Return the first slot of a key. Writers of records do not know the seeds.
    #[inline]
    fn slot_of(&self, key: &Key) -> usize {
        let mut hash = 0_u64;
        for (word, seed) in key.iter().zip(self.seeds) {
            let product = u128::from(hash ^ word ^ seed) * u128::from(seed);
            #[allow(clippy::cast_possible_truncation)] // both halves count
            let folded = product as u64 ^ (product >> 64) as u64;
            hash = folded;
        }
        #[allow(clippy::cast_possible_truncation)] // only its lowest bits count
        let at = hash as usize & self.slots.len().saturating_sub(1);
        at
    }

    /// Double the number of slots.
    #[cold]
    fn grow(&mut self) -> Option<()> {
        let count = self.slots.len().checked_mul(2)?.max(SLOTS_MIN);
        self.slots.clear();
        self.slots.try_resize(count, 0)?;
        for ordinal in 0..self.entries.len() {
            let mut at = self.slot_of(&self.entries.get(ordinal)?.key);
            while *self.slots.get(at)? != 0 {
                at = (at + 1) & (count - 1);
            }
            *self.slots.get_mut(at)? = u32::try_from(ordinal + 1).ok()?;
        }
        Some(())
    }
}

/// Return the words of the bytes of a key.
#[inline]
fn key_of(bytes: &[u8]) -> Option<Key> {
    let mut padded = [0; KEY_WORDS * WORD_BYTES];
    padded.get_mut(..bytes.len())?.copy_from_slice(bytes);
    let (words, _) = padded.as_chunks::<WORD_BYTES>();
    let mut key = [0; KEY_WORDS];
    for (word, own) in key.iter_mut().zip(words) {
        *word = u64::from_ne_bytes(*own);
    }
    Some(key)
}

impl Request {
    /// Return the request for `fields`, each with place, lowest and highest number. `None` if there
    /// are too many.
    pub fn new(api_key: u8, key_bytes: usize, fields: &[(usize, i64, i64)]) -> Option<Self> {
        let mut own = [None; FIELDS_MAX];
        for (ordinal, &(place, lowest, highest)) in fields.iter().enumerate() {
            if ordinal == MERGED_MAX {
                return None;
            }
            *own.get_mut(place)? = Some((ordinal, lowest, highest));
        }
        Some(Self {
            api_key,
            key_bytes,
            fields: own,
        })
    }

    /// Return the fields of a version; `None` if its key has another size.
    #[inline]
    fn body<'a>(&self, program: &'a Program, version: u8) -> Option<&'a Struct> {
        let record = program.record(self.api_key, version)?;
        let body = program.structs.get(record.body)?;
        (key_bytes(body)? == self.key_bytes).then_some(body)
    }

    fn field(&self, field: &Field) -> Option<(usize, i64, i64)> {
        *self.fields.get(field.place)?
    }

    /// Return the fields that a record sets, whose bytes after the key are those of the reader.
    ///
    /// `None` if the record is not merged.
    #[inline]
    fn read<'a>(&self, body: &Struct, reader: &mut Reader<'a>) -> Option<Set<'a>> {
        let mut set = Set::default();
        let mut tagged = body.by_tag.iter().filter_map(|&at| body.fields.get(at));
        for _ in 0..reader.unsigned_varint()? {
            let tag = reader.unsigned_varint()?;
            let length = usize::try_from(reader.unsigned_varint()?).ok()?;
            let bytes = reader.take(length)?;
            // Nothing is left for a tag that is unknown or does not ascend.
            let field = tagged.find(|field| field.tag == Some(tag))?;
            let (ordinal, lowest, highest) = self.field(field)?;
            let mut inner = Reader::new(bytes);
            match field.shape {
                Shape::Scalar(kind) => {
                    let number = read_integer(kind, &mut inner)?;
                    if number == field.default || number < lowest || number > highest {
                        return None;
                    }
                }
                Shape::Array(kind) => {
                    let count = read_length(field.nullable, &mut inner)??;
                    if field.default == 0 && count == 0 {
                        return None;
                    }
                    inner.take(count.checked_mul(kind.width()?)?)?;
                }
                Shape::Structs(_) => return None,
            }
            if !inner.is_at_end() {
                return None;
            }
            *set.get_mut(ordinal)? = Some(bytes);
        }
        reader.is_at_end().then_some(set)
    }
}

/// Merge the records in the rows `which`, numbers in native byte order, ascending.
///
/// Records of another type than the request's also begin with the bytes of a key. The key's records
/// before such a record are not merged with those after it. `None` if a record has no plain frame
/// or no key, its key is not that of the program, or there is no memory.
pub fn merge(
    program: &Program,
    rows: &Rows<'_>,
    which: &[u8],
    request: &Request,
) -> Option<Merged> {
    let (which, []) = which.as_chunks::<4>() else {
        return None;
    };
    let mut runs: Vec<Run> = Vec::new();
    let mut open = OpenRuns::new();
    for row in which {
        let row = i32::from_ne_bytes(*row);
        let value = rows.value(usize::try_from(row).ok()?)?;
        let mut reader = Reader::new(value);
        let (api_key, version) = read_frame(&mut reader)?;
        let key = key_of(reader.take(request.key_bytes)?)?;
        let entry = open.entry(key)?;
        if api_key != request.api_key {
            entry.run = NONE;
            continue;
        }
        let body = request.body(program, version)?;
        let set = request.read(body, &mut reader);
        let before = usize::try_from(entry.run)
            .ok()
            .and_then(|at| runs.get_mut(at))
            .filter(|run| run.version == version);
        if let (Some(set), Some(run)) = (set, before) {
            run.add(&set, row)?;
            continue;
        }
        let ordinal = i32::try_from(runs.len()).ok()?;
        entry.run = if set.is_some() { ordinal } else { NONE };
        let mut run = Run {
            set_rows: [NONE; MERGED_MAX],
            first_row: row,
            last_row: row,
            count: 0,
            set_count: 0,
            version,
        };
        run.add(&set.unwrap_or_default(), row)?;
        runs.try_push(run)?;
    }
    written(program, rows, &runs, request)
}

/// Return the size of the fields without a tag, all of which have a fixed size.
fn key_bytes(body: &Struct) -> Option<usize> {
    let mut count = 0;
    for &at in &body.untagged {
        let Shape::Scalar(kind) = body.fields.get(at)?.shape else {
            return None;
        };
        count += kind.width()?;
    }
    Some(count)
}

impl Run {
    /// Add the next record of the key.
    #[inline]
    fn add(&mut self, set: &Set<'_>, row: i32) -> Option<()> {
        self.last_row = row;
        self.count = self.count.checked_add(1)?;
        self.set_count += i32::from(set.first().is_some_and(Option::is_some));
        for (own, bytes) in self.set_rows.iter_mut().zip(set) {
            if bytes.is_some() {
                *own = row;
            }
        }
        Some(())
    }

    /// Write the bytes of the merged record.
    fn write(
        &self,
        rows: &Rows<'_>,
        body: &Struct,
        request: &Request,
        data: &mut Vec<u8>,
    ) -> Option<()> {
        let value = rows.value(usize::try_from(self.first_row).ok()?)?;
        if self.count == 1 {
            return data.try_extend(value);
        }
        let head = FRAME_BYTES.checked_add(request.key_bytes)?;
        data.try_extend(value.get(..head)?)?;
        let count = self.set_rows.iter().filter(|row| **row != NONE).count();
        data.try_push(u8::try_from(count).ok()?)?;
        for field in body.by_tag.iter().filter_map(|&at| body.fields.get(at)) {
            let Some((ordinal, _, _)) = request.field(field) else {
                continue;
            };
            let row = *self.set_rows.get(ordinal)?;
            if row == NONE {
                continue;
            }
            let of_row = rows.value(usize::try_from(row).ok()?)?.get(head..)?;
            let set = request.read(body, &mut Reader::new(of_row))?;
            let bytes = (*set.get(ordinal)?)?;
            write_varint(field.tag?, data)?;
            write_varint(u32::try_from(bytes.len()).ok()?, data)?;
            data.try_extend(bytes)?;
        }
        Some(())
    }
}

fn write_varint(mut value: u32, data: &mut Vec<u8>) -> Option<()> {
    while value >= 0x80 {
        data.try_push(u8::try_from(value & 0x7f).ok()? | 0x80)?;
        value >>= 7;
    }
    data.try_push(u8::try_from(value).ok()?)
}

fn written(program: &Program, rows: &Rows<'_>, runs: &[Run], request: &Request) -> Option<Merged> {
    let mut merged = Merged {
        ends: reused(runs.len().checked_add(1)?)?,
        data: Vec::new(),
        first_rows: reused(runs.len())?,
        last_rows: reused(runs.len())?,
        counts: reused(runs.len())?,
        set_counts: reused(runs.len())?,
    };
    merged.ends.try_push(0)?;
    for run in runs {
        let body = request.body(program, run.version)?;
        run.write(rows, body, request, &mut merged.data)?;
        merged
            .ends
            .try_push(i32::try_from(merged.data.len()).ok()?)?;
        merged.first_rows.try_push(run.first_row)?;
        merged.last_rows.try_push(run.last_row)?;
        merged.counts.try_push(run.count)?;
        merged.set_counts.try_push(run.set_count)?;
    }
    Some(merged)
}
