//! Fields of the metadata records of one type as columns, in Arrow's layout
//! (`state/raftlog_state/records/typed_columns.py`).
//!
//! A column tree has the fields of the latest version. A record of an older version has the defaults
//! of the fields that it lacks, as a tagged field that is absent. A record is plain as in `program`,
//! except that its strings may have all characters.

use crate::memory::{Grow, reused};
use crate::program::{
    FIELDS_MAX, Field, Kind, Program, Rows, STRING_BYTES_MAX, Shape, Shows, Struct,
    UUID_CHARACTERS, read_frame, read_length, uuid_text,
};
use crate::reader::Reader;

/// Column of a field, or of the elements of an array.
pub struct Column {
    /// One byte per row, 0 for null; empty before the first null.
    pub valid: Vec<u8>,
    /// Of strings and arrays: the end of each row in `data` or in the inner columns, after a 0.
    pub ends: Option<Vec<i32>>,
    /// Numbers in native byte order, booleans as bytes, or the bytes of all strings.
    pub data: Vec<u8>,
    shape: Shape,
    /// Strings and arrays alone are nullable.
    nullable: bool,
    /// Null rows after those of the vectors, which get them before a row that is not null.
    nulls: usize,
    /// Rows for which the vectors of a nullable column reserve memory once they need it.
    room: usize,
    /// Of an array: its elements, or the fields of its structs.
    pub inner: Vec<Column>,
}

/// Columns of the plain records, and the ordinals of the others.
pub struct Columns {
    pub fields: Vec<Column>,
    pub given_back: Vec<i32>,
}

/// Build the columns of the records in `which` rows: numbers in native byte order, ascending. All
/// are of the type `api_key`, whose latest version is `version`.
///
/// The columns have a row for each plain record, or if they are `spread` for each row of `rows`:
/// null or zero for all others.
///
/// `None` if the program lacks that version, the rows are inconsistent, a column exceeds 32-bit
/// offsets, or memory is refused.
pub fn build(
    program: &Program,
    rows: &Rows<'_>,
    which: &[u8],
    (api_key, version): (u8, u8),
    reveal: bool,
    spread: bool,
) -> Option<Columns> {
    let (which, []) = which.as_chunks::<4>() else {
        return None;
    };
    let latest = program
        .structs
        .get(program.record(api_key, version)?.body)?;
    let mut columns = Columns {
        fields: columns_of(program, latest)?,
        given_back: Vec::new(),
    };
    let count = if spread { rows.len() } else { which.len() };
    for column in &mut columns.fields {
        column.try_room(count)?;
    }
    let mut done = 0;
    for (ordinal, row) in which.iter().enumerate() {
        let row = usize::try_from(i32::from_ne_bytes(*row)).ok()?;
        let value = rows.value(row)?;
        if spread {
            columns.add_empty(row.checked_sub(done)?)?;
            done = row;
        }
        if add_value(program, value, api_key, reveal, latest, &mut columns.fields).is_some() {
            done += 1;
        } else {
            columns
                .fields
                .iter_mut()
                .try_for_each(|column| column.truncate(done))?;
            columns.given_back.try_push(i32::try_from(ordinal).ok()?)?;
        }
    }
    if spread {
        columns.add_empty(rows.len().checked_sub(done)?)?;
    }
    Some(columns)
}

impl Columns {
    fn add_empty(&mut self, count: usize) -> Option<()> {
        if count == 0 {
            return Some(());
        }
        self.fields
            .iter_mut()
            .try_for_each(|column| column.add_empty(count))
    }
}

fn columns_of(program: &Program, body: &Struct) -> Option<Vec<Column>> {
    let mut columns = Vec::with_room(body.fields.len())?;
    for (ordinal, field) in body.fields.iter().enumerate() {
        if field.place != ordinal {
            return None; // the latest version lacks a field
        }
        columns.try_push(Column::new(program, field.shape, field.nullable)?)?;
    }
    Some(columns)
}

fn add_value(
    program: &Program,
    value: &[u8],
    api_key: u8,
    reveal: bool,
    latest: &Struct,
    columns: &mut [Column],
) -> Option<()> {
    let mut reader = Reader::new(value);
    let (found, version) = read_frame(&mut reader)?;
    if found != api_key {
        return None;
    }
    let record = program.record(found, version)?;
    let shows = Shows {
        reveal,
        guard: record.guard,
    };
    let body = program.structs.get(record.body)?;
    add_struct(program, body, latest, &mut reader, &shows, columns)?;
    reader.is_at_end().then_some(())
}

/// Add a row to the columns of `latest`: the fields of the struct at the reader, in the order of
/// its bytes, and the defaults of those that it lacks.
fn add_struct(
    program: &Program,
    body: &Struct,
    latest: &Struct,
    reader: &mut Reader<'_>,
    shows: &Shows,
    columns: &mut [Column],
) -> Option<()> {
    if body.hides && !shows.reveal {
        check_public(program, body, reader.rest(), shows)?;
    }
    for &at in &body.untagged {
        let field = body.fields.get(at)?;
        let column = columns.get_mut(field.place)?;
        column.add_field(program, field, reader, shows)?;
    }
    let mut tagged = body.by_tag.iter().filter_map(|&at| body.fields.get(at));
    for _ in 0..reader.unsigned_varint()? {
        let tag = reader.unsigned_varint()?;
        let length = usize::try_from(reader.unsigned_varint()?).ok()?;
        let mut inner = Reader::new(reader.take(length)?);
        // None is left for a tag that is unknown, or does not ascend.
        let mut field = tagged.next()?;
        while field.tag != Some(tag) {
            columns.get_mut(field.place)?.add_default(field)?;
            field = tagged.next()?;
        }
        let column = columns.get_mut(field.place)?;
        column.add_field(program, field, &mut inner, shows)?;
        if !inner.is_at_end() {
            return None;
        }
    }
    for field in tagged {
        columns.get_mut(field.place)?.add_default(field)?;
    }
    if body.fields.len() == latest.fields.len() {
        return Some(());
    }
    let mut present = body.fields.iter().peekable();
    for (declared, column) in latest.fields.iter().zip(columns) {
        if present
            .next_if(|field| field.place == declared.place)
            .is_none()
        {
            column.add_default(declared)?;
        }
    }
    Some(())
}

/// `None` unless all fields of the struct at the start of `bytes` are shown.
fn check_public(program: &Program, body: &Struct, bytes: &[u8], shows: &Shows) -> Option<()> {
    let mut located = [None; FIELDS_MAX];
    program.locate(body, &mut Reader::new(bytes), &mut located)?;
    for (field, bytes) in body.fields.iter().zip(located.iter()) {
        if field.hidden
            && let Some(bytes) = bytes
            && !program.is_public(body, &located, shows, bytes)?
        {
            return None;
        }
    }
    Some(())
}

impl Column {
    fn new(program: &Program, shape: Shape, nullable: bool) -> Option<Self> {
        let inner = match shape {
            Shape::Scalar(_) => Vec::new(),
            Shape::Array(kind) => {
                let mut inner = Vec::with_room(1)?;
                inner.try_push(Self::new(program, Shape::Scalar(kind), false)?)?;
                inner
            }
            Shape::Structs(element) => columns_of(program, program.structs.get(element)?)?,
        };
        let ends = match shape {
            Shape::Scalar(kind) if !matches!(kind, Kind::String | Kind::Uuid) => None,
            _ => {
                let mut ends = Vec::new();
                ends.try_push(0)?;
                Some(ends)
            }
        };
        (ends.is_some() || !nullable).then_some(Self {
            valid: Vec::new(),
            ends,
            data: Vec::new(),
            shape,
            nullable,
            nulls: 0,
            room: 0,
            inner,
        })
    }

    /// Reserve memory for `count` rows, without that of strings and elements.
    fn try_room(&mut self, count: usize) -> Option<()> {
        match (&mut self.ends, self.shape) {
            (Some(_), _) => {
                self.room = count;
                Some(())
            }
            (None, Shape::Scalar(kind)) => {
                self.data = reused(count.checked_mul(column_width(kind)?)?)?;
                Some(())
            }
            (None, _) => None,
        }
    }

    /// Add rows that are null, zero or empty.
    fn add_empty(&mut self, count: usize) -> Option<()> {
        if self.nullable {
            self.nulls = self.nulls.checked_add(count)?;
            return Some(());
        }
        self.reserve()?;
        match (&mut self.ends, self.shape) {
            (Some(ends), _) => {
                let end = *ends.last()?;
                ends.try_resize(ends.len().checked_add(count)?, end)
            }
            (None, Shape::Scalar(kind)) => {
                let bytes = count.checked_mul(column_width(kind)?)?;
                self.data.try_resize(self.data.len().checked_add(bytes)?, 0)
            }
            (None, _) => None,
        }
    }

    /// Remove the rows from `count` on.
    fn truncate(&mut self, count: usize) -> Option<()> {
        let Some(ends) = &mut self.ends else {
            let Shape::Scalar(kind) = self.shape else {
                return None;
            };
            self.data.truncate(count.checked_mul(column_width(kind)?)?);
            return Some(());
        };
        self.nulls = count.saturating_sub(ends.len().checked_sub(1)?);
        self.valid.truncate(count);
        ends.truncate(count.checked_add(1)?);
        let end = usize::try_from(*ends.last()?).ok()?;
        self.data.truncate(end);
        self.inner
            .iter_mut()
            .try_for_each(|column| column.truncate(end))
    }

    /// Add the value at the reader.
    fn add_field(
        &mut self,
        program: &Program,
        field: &Field,
        reader: &mut Reader<'_>,
        shows: &Shows,
    ) -> Option<()> {
        if let Shape::Scalar(kind) = field.shape {
            return self.add_scalar(kind, reader);
        }
        let Some(count) = read_length(field.nullable, reader)? else {
            return self.add_null();
        };
        match (field.shape, self.shape) {
            (Shape::Structs(element), Shape::Structs(latest)) => {
                let body = program.structs.get(element)?;
                let latest = program.structs.get(latest)?;
                for _ in 0..count {
                    add_struct(program, body, latest, reader, shows, &mut self.inner)?;
                }
            }
            (Shape::Array(Kind::Int32), _) => {
                let bytes = reader.take(count.checked_mul(size_of::<i32>())?)?;
                self.inner.first_mut()?.add_int32s(bytes)?;
            }
            (Shape::Array(kind), _) => {
                let elements = self.inner.first_mut()?;
                for _ in 0..count {
                    elements.add_scalar(kind, reader)?;
                }
            }
            _ => return None,
        }
        self.end_row(count)
    }

    #[inline]
    fn add_scalar(&mut self, kind: Kind, reader: &mut Reader<'_>) -> Option<()> {
        match kind {
            Kind::Uuid => {
                let text = uuid_text(reader.array()?);
                self.data.try_extend(&text)?;
                self.end_row(UUID_CHARACTERS)
            }
            Kind::String => {
                let Some(length) = read_length(self.nullable, reader)? else {
                    return self.add_null();
                };
                if length > STRING_BYTES_MAX {
                    return None;
                }
                let text = std::str::from_utf8(reader.take(length)?).ok()?;
                self.data.try_extend(text.as_bytes())?;
                self.end_row(length)
            }
            Kind::Bool => self.data.try_push(u8::from(reader.byte()? != 0)),
            Kind::Int8 => self.data.try_push(reader.byte()?),
            Kind::Int16 => {
                let value = i16::from_be_bytes(reader.array()?);
                self.data.try_extend(&value.to_ne_bytes())
            }
            Kind::UInt16 => {
                let value = u16::from_be_bytes(reader.array()?);
                self.data.try_extend(&i32::from(value).to_ne_bytes())
            }
            Kind::Int32 => {
                let value = i32::from_be_bytes(reader.array()?);
                self.data.try_extend(&value.to_ne_bytes())
            }
            Kind::Int64 | Kind::Float64 => {
                let value = u64::from_be_bytes(reader.array()?);
                self.data.try_extend(&value.to_ne_bytes())
            }
        }
    }

    /// Add 32-bit numbers in network byte order.
    #[inline]
    fn add_int32s(&mut self, bytes: &[u8]) -> Option<()> {
        let first = self.data.len();
        self.data.try_extend(bytes)?;
        for number in self.data.get_mut(first..)?.as_chunks_mut::<4>().0 {
            *number = i32::from_be_bytes(*number).to_ne_bytes();
        }
        Some(())
    }

    fn add_number(&mut self, kind: Kind, value: i64) -> Option<()> {
        match kind {
            Kind::Bool | Kind::Int8 => self
                .data
                .try_extend(&i8::try_from(value).ok()?.to_ne_bytes()),
            Kind::Int16 => self
                .data
                .try_extend(&i16::try_from(value).ok()?.to_ne_bytes()),
            Kind::UInt16 | Kind::Int32 => self
                .data
                .try_extend(&i32::try_from(value).ok()?.to_ne_bytes()),
            Kind::Int64 => self.data.try_extend(&value.to_ne_bytes()),
            Kind::Float64 | Kind::Uuid | Kind::String => None,
        }
    }

    /// End a row of strings or arrays after `count` more bytes or elements.
    #[inline]
    fn end_row(&mut self, count: usize) -> Option<()> {
        self.reserve()?;
        if self.nulls > 0 {
            self.write_nulls()?;
        }
        let ends = self.ends.as_mut()?;
        ends.try_push(ends.last()?.checked_add(i32::try_from(count).ok()?)?)?;
        if self.valid.is_empty() {
            return Some(());
        }
        self.valid.try_push(1)
    }

    fn add_null(&mut self) -> Option<()> {
        self.add_empty(self.nullable.then_some(1)?)
    }

    /// Reserve the memory for the ends before the first row.
    #[inline]
    fn reserve(&mut self) -> Option<()> {
        match &mut self.ends {
            Some(ends) if ends.capacity() <= self.room => {
                let before = std::mem::replace(ends, reused(self.room.checked_add(1)?)?);
                ends.try_extend(&before)
            }
            _ => Some(()),
        }
    }

    /// Write the null rows to the vectors.
    fn write_nulls(&mut self) -> Option<()> {
        let ends = self.ends.as_mut()?;
        let (&end, written) = (ends.last()?, ends.len().checked_sub(1)?);
        let count = written.checked_add(self.nulls)?;
        if self.valid.is_empty() {
            self.valid = reused(self.room.max(count))?;
            self.valid.try_resize(written, 1)?;
        }
        self.valid.try_resize(count, 0)?;
        ends.try_resize(count.checked_add(1)?, end)?;
        self.nulls = 0;
        Some(())
    }

    /// Write the rows that are left to the vectors; return whether one of all rows is not null.
    pub fn finish(&mut self) -> Option<bool> {
        if self.nulls == 0 {
            return Some(true);
        }
        if self.ends.as_ref()?.len() == 1 {
            return Some(false);
        }
        self.write_nulls()?;
        Some(true)
    }

    /// Add the default of a field that the record lacks; `None` of a kind that has no table entry.
    fn add_default(&mut self, field: &Field) -> Option<()> {
        match field.shape {
            Shape::Scalar(Kind::Float64 | Kind::Uuid) => None,
            Shape::Scalar(kind) if kind != Kind::String => self.add_number(kind, field.default),
            _ if field.default == -1 => self.add_null(),
            _ => self.end_row(0),
        }
    }
}

/// Return the number of bytes of a row.
const fn column_width(kind: Kind) -> Option<usize> {
    match kind {
        Kind::UInt16 => Some(4), // as Arrow's int32
        _ => kind.width(),
    }
}
