//! Scan of a buffer of batches to columns of headers and records (`raftlog/records/scan.py`).
//!
//! The scan ends at the first batch that fails a check; Python finds the reason. The whole scan is
//! given back (`None`) if it would need more headers than a scan may return, or more memory than
//! there is.

use std::iter::repeat_with;

use pyo3::pybacked::PyBackedBytes;

use crate::batch::{Batch, Header, Range, Stop, Walk, Walked, end_of};
use crate::memory::{Grow, borrowed, reused};
use crate::reader::Reader;

/// Smallest record: seven fields of one byte each.
pub const RECORD_BYTES_MIN: usize = 7;
/// Memory for one record is reserved per this many bytes of the log: a batch of one small record.
const RECORD_BYTES_RESERVED: usize = 128;

/// Fewer records than this take the same time if added one by one.
const PLAIN_RECORDS_MIN: usize = 4;
/// Encoded length of a null key.
const NULL_KEY: u8 = 1;
/// Last byte of a record without headers: their number.
const NO_HEADERS: [u8; 1] = [0];
/// Number of prefixes whose first bytes are compared in one step.
const HEADS: usize = 4;
/// First bytes of a prefix.
type Head = [u8; 2];

/// Columns to build: the bits of `batch_columns.Column`.
#[derive(Clone, Copy)]
pub struct Columns(pub u32);

impl Columns {
    pub const OFFSET: u32 = 1;
    pub const TIMESTAMP: u32 = 2;
    pub const LEADER_EPOCH: u32 = 4;
    pub const KEY: u32 = 8;
    pub const VALUE: u32 = 16;
    pub const HEADERS: u32 = 32;

    const fn has(self, column: u32) -> bool {
        self.0 & column != 0
    }

    /// Return whether records without keys and headers have values for these.
    const fn are_of_plain_records(self) -> bool {
        self.has(Self::OFFSET) && self.has(Self::VALUE) && !self.has(Self::HEADERS)
    }
}

/// What to scan, and the limits of one scan (`raftlog/limits.py`).
#[derive(Clone, Copy)]
pub struct Request<'a> {
    pub columns: Columns,
    pub range: Range,
    /// If there are any, only control records, and values that begin with one, have rows.
    pub prefixes: &'a [PyBackedBytes],
    /// Bytes of batches that one scan reads; at least one batch is read.
    pub bytes_max: usize,
    /// Decompressed bytes after which the scan stops before the next batch.
    pub expanded_max: usize,
    pub record_headers_max: usize,
    pub headers_max: usize,
}

impl Request<'_> {
    /// Return the first bytes of each prefix, repeated to fill the array. `None` if there are no
    /// prefixes, too many, or one that is shorter.
    fn heads(&self) -> Option<[Head; HEADS]> {
        let mut heads = [*self.prefixes.first()?.first_chunk()?; HEADS];
        if self.prefixes.len() > HEADS {
            return None;
        }
        for (head, prefix) in heads.iter_mut().zip(self.prefixes) {
            *head = *prefix.first_chunk()?;
        }
        Some(heads)
    }

    fn has_prefix(&self, value: Option<&[u8]>) -> bool {
        value.is_some_and(|bytes| self.prefixes.iter().any(|prefix| bytes.starts_with(prefix)))
    }
}

/// Column of byte strings or nulls, in Arrow's layout. It needs no memory while all are null.
#[derive(Default)]
pub struct Strings {
    rows: usize,
    offsets: Vec<i32>,
    data: Vec<u8>,
    /// One byte per row once there are both nulls and strings.
    valid: Vec<u8>,
}

/// Buffers of a column with at least one row that is not null.
pub struct StringBuffers {
    /// Arrow's bitmap; `None` if no row is null.
    pub valid: Option<Vec<u8>>,
    pub offsets: Vec<i32>,
    pub data: Vec<u8>,
}

impl Strings {
    /// Add a row. `None` if the bytes exceed Arrow's 32-bit offsets or there is no memory.
    #[inline(always)]
    fn push(&mut self, value: Option<&[u8]>, reserve: (usize, usize)) -> Option<()> {
        if let Some(bytes) = value {
            if self.offsets.is_empty() {
                self.begin(reserve)?;
            }
            self.data.try_extend(bytes)?;
            self.offsets
                .try_push(i32::try_from(self.data.len()).ok()?)?;
            if !self.valid.is_empty() {
                self.valid.try_push(1)?;
            }
        } else if !self.offsets.is_empty() {
            if self.valid.is_empty() {
                self.valid.try_resize(self.rows, 1)?;
            }
            self.offsets
                .try_push(i32::try_from(self.data.len()).ok()?)?;
            self.valid.try_push(0)?;
        }
        self.rows += 1;
        Some(())
    }

    /// Write the null rows so far, before the first string.
    #[cold]
    fn begin(&mut self, (rows, bytes): (usize, usize)) -> Option<()> {
        self.offsets = reused(rows + 1)?;
        self.data = reused(bytes)?;
        self.offsets.try_resize(self.rows + 1, 0)?;
        self.valid.try_resize(self.rows, 0)
    }

    const fn mark(&self) -> (usize, usize) {
        (self.rows, self.data.len())
    }

    /// Remove the rows after a mark.
    fn truncate(&mut self, (rows, bytes): (usize, usize)) {
        self.rows = rows;
        self.offsets.truncate(rows + 1);
        self.data.truncate(bytes);
        self.valid.truncate(rows);
    }

    /// Return the buffers; the inner `None` if all rows are null, the outer one if no memory.
    fn finish(self) -> Option<Option<StringBuffers>> {
        let has_null = self.valid.contains(&0);
        if self.offsets.len() < 2 || (has_null && !self.valid.contains(&1)) {
            return Some(None);
        }
        let valid = if has_null {
            let mut bitmap = Vec::with_room(self.valid.len().div_ceil(8))?;
            for rows in self.valid.chunks(8) {
                bitmap.try_push(rows.iter().rev().fold(0, |bits, row| bits << 1 | row))?;
            }
            Some(bitmap)
        } else {
            None
        };
        Some(Some(StringBuffers {
            valid,
            offsets: self.offsets,
            data: self.data,
        }))
    }
}

/// Records of a scan, one element per record; columns that were not requested are empty.
pub struct Records {
    pub rows: usize,
    pub ordinals: Vec<i32>,
    pub is_control: Vec<u8>,
    pub offsets: Vec<i64>,
    pub timestamps_ms: Vec<i64>,
    pub leader_epochs: Vec<i32>,
    pub keys: Option<StringBuffers>,
    pub values: Option<StringBuffers>,
    /// First header of each record, and the number of all headers at the end.
    pub header_offsets: Vec<i32>,
    pub header_keys: Option<StringBuffers>,
    pub header_values: Option<StringBuffers>,
}

/// Batches and records of a scan.
pub struct Scanned {
    pub walked: Walked,
    pub records: Records,
}

/// Columns while they are built.
struct Builder<'a> {
    request: Request<'a>,
    /// Records and bytes of strings for which memory is reserved.
    reserve: (usize, usize),
    /// Whether all records so far were added by `add_plain`.
    is_plain: bool,
    heads: Option<[Head; HEADS]>,
    rows: usize,
    header_count: usize,
    ordinals: Vec<i32>,
    is_control: Vec<u8>,
    offsets: Vec<i64>,
    timestamps_ms: Vec<i64>,
    leader_epochs: Vec<i32>,
    keys: Strings,
    values: Strings,
    header_offsets: Vec<i32>,
    header_keys: Strings,
    header_values: Strings,
}

/// Reason why the records of a batch were not added.
enum Refused {
    /// They fail a check.
    Damaged,
    /// They exceed what a scan may return, or the memory.
    TooMany,
}

/// Fields of one record.
pub struct Record<'a> {
    pub attributes: u8,
    pub timestamp_delta: i64,
    pub offset_delta: i32,
    pub key: Option<&'a [u8]>,
    pub value: Option<&'a [u8]>,
    pub header_count: usize,
    /// Headers that have not been read.
    pub headers: Reader<'a>,
}

impl<'a> Record<'a> {
    /// Read a record up to its headers. `None` if the bytes do not have the form of a record.
    #[inline]
    pub fn read(records: &mut Reader<'a>, headers_max: usize) -> Option<Self> {
        let length = usize::try_from(records.varint()?).ok()?;
        let mut fields = Reader::new(records.take(length)?);
        let attributes = fields.byte()?;
        let timestamp_delta = fields.varlong()?;
        let offset_delta = fields.varint()?;
        let key = fields.bytes()?;
        let value = fields.bytes()?;
        let header_count = usize::try_from(fields.varint()?).ok()?;
        if header_count == 0 {
            if !fields.is_at_end() {
                return None;
            }
        } else if 2 * header_count > fields.left() || header_count > headers_max {
            return None;
        }
        Some(Self {
            attributes,
            timestamp_delta,
            offset_delta,
            key,
            value,
            header_count,
            headers: fields,
        })
    }
}

/// Read the deltas and the value of a record that has a value, and neither a key nor headers.
#[inline(always)]
fn read_plain<'a>(records: &mut Reader<'a>) -> Option<(i64, i32, &'a [u8])> {
    let length = usize::try_from(records.varint()?).ok()?;
    let mut fields = Reader::new(records.take(length)?);
    fields.byte()?; // attributes
    let timestamp_delta = fields.varlong()?;
    let offset_delta = fields.varint()?;
    if fields.byte()? != NULL_KEY {
        return None;
    }
    let value = fields.bytes()??;
    (fields.rest() == NO_HEADERS).then_some((timestamp_delta, offset_delta, value))
}

/// Write rows for the records of `payload`, all of which `read_plain` can read.
#[inline(always)]
fn write_plain<'a>(
    header: &Header,
    payload: &[u8],
    offsets: &mut [i64],
    timestamps_ms: impl Iterator<Item = Option<&'a mut i64>>,
    ends: &mut [i32],
    data: &mut Vec<u8>,
) -> Option<()> {
    let mut records = Reader::new(payload);
    let mut last_delta = -1;
    for ((offset, timestamp_ms), value_end) in offsets.iter_mut().zip(timestamps_ms).zip(ends) {
        let (timestamp_delta, offset_delta, value) = read_plain(&mut records)?;
        if offset_delta <= last_delta {
            return None;
        }
        last_delta = offset_delta;
        *offset = header.base_offset + i64::from(offset_delta);
        if let Some(timestamp_ms) = timestamp_ms {
            *timestamp_ms = header.base_timestamp_ms.wrapping_add(timestamp_delta);
        }
        data.try_extend(value)?;
        *value_end = i32::try_from(data.len()).ok()?;
    }
    (last_delta <= header.last_offset_delta && records.is_at_end()).then_some(())
}

impl<'a> Builder<'a> {
    /// Return empty columns; `None` if there is no memory for `reserve`.
    fn new(request: Request<'a>, reserve: (usize, usize)) -> Option<Self> {
        let (rows, _) = reserve;
        let wanted = |column| {
            if request.columns.has(column) { rows } else { 0 }
        };
        let mut header_offsets = Vec::new();
        if request.columns.has(Columns::HEADERS) {
            header_offsets.try_push(0)?;
        }
        Some(Self {
            request,
            reserve,
            is_plain: request.columns.are_of_plain_records() && request.prefixes.is_empty(),
            heads: request.heads(),
            rows: 0,
            header_count: 0,
            ordinals: reused(rows)?,
            is_control: reused(rows)?,
            offsets: reused(wanted(Columns::OFFSET))?,
            timestamps_ms: reused(wanted(Columns::TIMESTAMP))?,
            leader_epochs: reused(wanted(Columns::LEADER_EPOCH))?,
            keys: Strings::default(),
            values: Strings::default(),
            header_offsets,
            header_keys: Strings::default(),
            header_values: Strings::default(),
        })
    }

    /// Add the records of a batch whose header is valid, either all of them or none.
    fn add(&mut self, header: &Header, payload: &[u8], ordinal: i32) -> Result<(), Refused> {
        let before = (self.rows, self.header_offsets.len());
        let marks = [
            &self.keys,
            &self.values,
            &self.header_keys,
            &self.header_values,
        ]
        .map(Strings::mark);
        let added = self.add_records(header, payload);
        if added.is_ok() {
            self.add_fields(header, ordinal).ok_or(Refused::TooMany)?;
        } else {
            let [keys, values, header_keys, header_values] = marks;
            self.rows = before.0;
            self.offsets.truncate(before.0);
            self.timestamps_ms.truncate(before.0);
            self.header_offsets.truncate(before.1);
            self.keys.truncate(keys);
            self.values.truncate(values);
            self.header_keys.truncate(header_keys);
            self.header_values.truncate(header_values);
        }
        added
    }

    /// Add what all records of a batch have in common.
    #[inline]
    fn add_fields(&mut self, header: &Header, ordinal: i32) -> Option<()> {
        self.ordinals.try_resize(self.rows, ordinal)?;
        self.is_control
            .try_resize(self.rows, header.is_control().into())?;
        if self.request.columns.has(Columns::LEADER_EPOCH) {
            self.leader_epochs
                .try_resize(self.rows, header.leader_epoch)?;
        }
        Some(())
    }

    fn add_records(&mut self, header: &Header, payload: &[u8]) -> Result<(), Refused> {
        let count = usize::try_from(header.record_count).map_err(|_| Refused::Damaged)?;
        if count
            .checked_mul(RECORD_BYTES_MIN)
            .is_none_or(|bytes| bytes > payload.len())
        {
            return Err(Refused::Damaged);
        }
        if self.are_others(header, payload, count).is_some() {
            return Ok(());
        }
        if count >= PLAIN_RECORDS_MIN && self.may_be_plain(header) {
            let before = (self.rows, self.values.data.len());
            if self.add_plain(header, payload, count).is_some() {
                return Ok(());
            }
            self.is_plain = false;
            self.offsets.truncate(before.0);
            self.timestamps_ms.truncate(before.0);
            self.values.truncate(before);
        }
        let mut records = Reader::new(payload);
        let mut last_delta = -1;
        for _ in 0..count {
            let record = Record::read(&mut records, self.request.record_headers_max)
                .ok_or(Refused::Damaged)?;
            if !(last_delta < record.offset_delta
                && record.offset_delta <= header.last_offset_delta)
            {
                return Err(Refused::Damaged);
            }
            last_delta = record.offset_delta;
            self.add_record(header, record)?;
        }
        if records.is_at_end() {
            Ok(())
        } else {
            Err(Refused::Damaged)
        }
    }

    /// Return `None` if a record of a batch may have one of the prefixes, or if `read_plain` cannot
    /// read it. Nearly no record of a log is a transaction marker.
    #[inline]
    fn are_others(&self, header: &Header, payload: &[u8], count: usize) -> Option<()> {
        let heads = self.heads?;
        if header.is_control() {
            return None;
        }
        let mut records = Reader::new(payload);
        let mut last_delta = -1;
        for _ in 0..count {
            let (_, offset_delta, value) = read_plain(&mut records)?;
            let is_wanted = value
                .first_chunk()
                .is_some_and(|head: &Head| heads.contains(head));
            if is_wanted || offset_delta <= last_delta {
                return None;
            }
            last_delta = offset_delta;
        }
        (last_delta <= header.last_offset_delta && records.is_at_end()).then_some(())
    }

    /// Return whether `add_plain` may add the records of a batch.
    fn may_be_plain(&self, header: &Header) -> bool {
        let Range { start, end } = self.request.range;
        self.is_plain
            && !header.is_log_append_time()
            && start.is_none_or(|start| header.base_offset >= start)
            && end.is_none_or(|end| header.last_offset() < end)
            && self.keys.offsets.is_empty()
            && self.values.valid.is_empty()
            && (self.rows == 0 || !self.values.offsets.is_empty())
    }

    /// Add the records of a batch, all of which have a value, and neither a key nor headers.
    ///
    /// Most batches of a metadata log have only such records. Rows are written to slices, because
    /// appending them to vectors takes as long as reading the record. `None` if a record is damaged
    /// or of another form, or if there is no memory; columns may then have rows of the batch.
    fn add_plain(&mut self, header: &Header, payload: &[u8], count: usize) -> Option<()> {
        let end = self.rows.checked_add(count)?;
        if self.values.offsets.is_empty() {
            self.values.begin(self.reserve)?;
        }
        self.offsets.try_resize(end, 0)?;
        self.values.offsets.try_resize(end + 1, 0)?;
        let offsets = self.offsets.get_mut(self.rows..)?;
        let ends = self.values.offsets.get_mut(self.rows + 1..)?;
        let data = &mut self.values.data;
        if self.request.columns.has(Columns::TIMESTAMP) {
            self.timestamps_ms.try_resize(end, 0)?;
            let timestamps_ms = self.timestamps_ms.get_mut(self.rows..)?.iter_mut();
            write_plain(
                header,
                payload,
                offsets,
                timestamps_ms.map(Some),
                ends,
                data,
            )?;
        } else {
            write_plain(header, payload, offsets, repeat_with(|| None), ends, data)?;
        }
        self.rows = end;
        self.keys.rows = end;
        self.values.rows = end;
        Some(())
    }

    #[inline]
    fn add_record(&mut self, header: &Header, record: Record<'_>) -> Result<(), Refused> {
        let Request { columns, range, .. } = self.request;
        let offset = header.base_offset + i64::from(record.offset_delta);
        let is_wanted = range.start.is_none_or(|start| offset >= start)
            && range.end.is_none_or(|end| offset < end)
            && (self.request.prefixes.is_empty()
                || header.is_control()
                || self.request.has_prefix(record.value));
        if record.header_count > 0 {
            self.add_headers(record.header_count, record.headers, is_wanted)?;
        }
        if !is_wanted {
            return Ok(());
        }
        if columns.has(Columns::OFFSET) {
            self.offsets.try_push(offset).ok_or(Refused::TooMany)?;
        }
        if columns.has(Columns::TIMESTAMP) {
            let timestamp_ms = if header.is_log_append_time() {
                header.max_timestamp_ms
            } else {
                header
                    .base_timestamp_ms
                    .wrapping_add(record.timestamp_delta)
            };
            self.timestamps_ms
                .try_push(timestamp_ms)
                .ok_or(Refused::TooMany)?;
        }
        if columns.has(Columns::KEY) {
            self.keys
                .push(record.key, self.reserve)
                .ok_or(Refused::TooMany)?;
        }
        if columns.has(Columns::VALUE) {
            self.values
                .push(record.value, self.reserve)
                .ok_or(Refused::TooMany)?;
        }
        if columns.has(Columns::HEADERS) {
            let end = i32::try_from(self.header_keys.rows).map_err(|_| Refused::TooMany)?;
            self.header_offsets.try_push(end).ok_or(Refused::TooMany)?;
        }
        self.rows += 1;
        Ok(())
    }

    fn add_headers(
        &mut self,
        count: usize,
        mut fields: Reader<'_>,
        is_wanted: bool,
    ) -> Result<(), Refused> {
        self.header_count += count;
        if self.header_count > self.request.headers_max {
            return Err(Refused::TooMany);
        }
        let is_built = is_wanted && self.request.columns.has(Columns::HEADERS);
        for _ in 0..count {
            let key = fields.bytes().flatten().ok_or(Refused::Damaged)?;
            let value = fields.bytes().ok_or(Refused::Damaged)?;
            if is_built {
                self.header_keys
                    .push(Some(key), (0, 0))
                    .ok_or(Refused::TooMany)?;
                self.header_values
                    .push(value, (0, 0))
                    .ok_or(Refused::TooMany)?;
            }
        }
        if fields.is_at_end() {
            Ok(())
        } else {
            Err(Refused::Damaged)
        }
    }

    fn finish(self) -> Option<Records> {
        Some(Records {
            rows: self.rows,
            ordinals: self.ordinals,
            is_control: self.is_control,
            offsets: self.offsets,
            timestamps_ms: self.timestamps_ms,
            leader_epochs: self.leader_epochs,
            keys: self.keys.finish()?,
            values: self.values.finish()?,
            header_offsets: self.header_offsets,
            header_keys: self.header_keys.finish()?,
            header_values: self.header_values.finish()?,
        })
    }
}

/// Scan `data`. `decompress` takes start and end of a compressed batch's payload and its codec, and
/// returns the records, or `Ok(None)` if they are damaged.
///
/// Returns `Ok(None)` if the scan is given back, and the error of `decompress`.
pub fn scan<D: AsRef<[u8]>, E>(
    data: &[u8],
    request: Request<'_>,
    mut decompress: impl FnMut(usize, usize, i16) -> Result<Option<D>, E>,
) -> Result<Option<Scanned>, E> {
    let mut batches = Walk::new(data);
    let reserve = (data.len() / RECORD_BYTES_RESERVED, data.len());
    let Some(mut builder) = Builder::new(request, reserve) else {
        return Ok(None);
    };
    let mut headers = borrowed::<(usize, Header)>();
    let mut expanded = 0;
    let mut stopped = None;
    for batch in batches.by_ref() {
        let header = batch.header;
        if headers.is_empty()
            && !request.range.is_before(&header)
            && request.range.is_after(&header)
        {
            continue;
        }
        let begin = headers.first().map_or(batch.position, |first| first.0);
        if let Some(stop) = stop_at(
            &batch,
            &request,
            batch.end() - begin,
            expanded,
            headers.is_empty(),
        ) {
            stopped = Some((batch.position, stop));
            break;
        }
        let Ok(ordinal) = i32::try_from(headers.len()) else {
            return Ok(None);
        };
        let added = if header.codec() == 0 {
            builder.add(&header, batch.payload(), ordinal)
        } else {
            let start = batch.end() - batch.payload().len();
            match decompress(start, batch.end(), header.codec())? {
                Some(plain) => {
                    expanded += plain.as_ref().len();
                    builder.add(&header, plain.as_ref(), ordinal)
                }
                None => Err(Refused::Damaged),
            }
        };
        match added {
            Ok(()) if headers.try_push((batch.position, header)).is_some() => {}
            Ok(()) | Err(Refused::TooMany) => return Ok(None),
            Err(Refused::Damaged) => {
                stopped = Some((batch.position, Stop::Damaged));
                break;
            }
        }
    }
    let (end_position, stop) =
        stopped.unwrap_or_else(|| (batches.position(), end_of(data, batches.position())));
    Ok(builder.finish().map(|records| Scanned {
        walked: Walked {
            headers,
            end_position,
            stop,
        },
        records,
    }))
}

/// Return why the scan ends before this batch, whose records have not been read.
#[inline]
fn stop_at(
    batch: &Batch<'_>,
    request: &Request<'_>,
    byte_count: usize,
    expanded: usize,
    is_first: bool,
) -> Option<Stop> {
    if request.range.is_before(&batch.header) {
        Some(Stop::EndOffset)
    } else if byte_count > request.bytes_max && !is_first {
        Some(Stop::Full)
    } else if !(batch.has_valid_crc() && batch.header.is_valid()) {
        Some(Stop::Damaged)
    } else if expanded > request.expanded_max {
        Some(Stop::Full)
    } else {
        None
    }
}
