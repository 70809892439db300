//! `heapscan scan --format arrow|parquet`: record batches, as they come, into an IPC stream or a Parquet file.

use crate::{
    args::{ArrayForm, ColumnarArgs, Compression, InfinityForm, RowFormat, SpecialForm, TextForm},
    output::Output,
};
use arrow_ipc::{
    CompressionType,
    writer::{IpcWriteOptions, StreamWriter},
};
use arrow_schema::{ArrowError, DataType};
use heapscan::{
    Error, ErrorKind, Result, ScanBuilder, ScanStats,
    arrow::{
        ArrayPolicy, BatchOptions, InfinityPolicy, IntervalPolicy, NumericPolicy, ParallelBatches,
        SpecialNumericPolicy, TextPolicy, TimestampUnit,
    },
};
use parquet::{
    arrow::ArrowWriter,
    basic::{Compression as ParquetCompression, ZstdLevel},
    errors::ParquetError,
    file::properties::WriterProperties,
};
use std::{error::Error as StdError, io, io::Write};

/// Bytes of a row group that are kept in memory before it is written, encoded and not yet encoded.
const ROW_GROUP_BYTES: usize = 64 << 20;
/// Rows of a row group at most: what readers of Parquet expect.
const ROW_GROUP_ROWS: usize = 1 << 20;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Arrow,
    Parquet,
}

impl Kind {
    /// The kind of a format that is made of batches.
    pub(crate) fn of(format: RowFormat) -> Option<Self> {
        match format {
            RowFormat::Arrow => Some(Self::Arrow),
            RowFormat::Parquet => Some(Self::Parquet),
            RowFormat::Text | RowFormat::Csv | RowFormat::Json => None,
        }
    }
}

/// Writes all rows; the caller finishes `out`. If that fails midway, what was written to a pipe lacks the end that makes
/// it whole.
pub(crate) fn write(
    scan: ScanBuilder,
    kind: Kind,
    args: &ColumnarArgs,
    out: &mut Output,
    progress: &mut dyn FnMut(u64),
) -> Result<ScanStats> {
    let mut options = options(args)?;
    if kind == Kind::Parquet {
        fit_parquet(&scan, &mut options)?;
    }
    let batches = scan.parallel_batches(options)?;
    match kind {
        Kind::Arrow => ipc_stream(batches, args.compression, out, progress),
        Kind::Parquet => parquet_file(batches, args.compression, out, progress),
    }
}

fn options(args: &ColumnarArgs) -> Result<BatchOptions> {
    Ok(BatchOptions {
        max_rows: args.batch_rows as usize,
        arrays: match args.arrays {
            ArrayForm::Text => ArrayPolicy::Text,
            ArrayForm::List => ArrayPolicy::List,
        },
        numeric: args.numeric.unwrap_or(NumericPolicy::Text),
        numeric_special: match args.numeric_special {
            SpecialForm::Error => SpecialNumericPolicy::Error,
            SpecialForm::Null => SpecialNumericPolicy::Null,
        },
        infinity: match args.infinity {
            InfinityForm::Error => InfinityPolicy::Error,
            InfinityForm::Null => InfinityPolicy::Null,
            InfinityForm::Saturate => InfinityPolicy::Saturate,
        },
        timestamp_unit: if args.nanoseconds { TimestampUnit::Nanosecond } else { TimestampUnit::Microsecond },
        interval: IntervalPolicy::Text,
        text: match args.text {
            TextForm::Utf8 => TextPolicy::Utf8,
            TextForm::Binary => TextPolicy::Binary,
        },
        strict: args.strict,
        ..BatchOptions::default()
    })
}

/// Parquet's decimals have no negative scale: `numeric(5, -2)` becomes a `decimal(7, 0)`.
fn fit_parquet(scan: &ScanBuilder, options: &mut BatchOptions) -> Result<()> {
    for field in scan.arrow_schema(options)?.fields() {
        if let DataType::Decimal128(precision, scale @ ..0) | DataType::Decimal256(precision, scale @ ..0) =
            *field.data_type()
        {
            let precision = precision.saturating_add(scale.unsigned_abs());
            let policy = match precision {
                ..=76 => NumericPolicy::Decimal { precision, scale: 0 },
                _ => NumericPolicy::Text,
            };
            options.numeric_columns.push((field.name().clone(), policy));
        }
    }
    Ok(())
}

fn ipc_stream(
    mut batches: ParallelBatches,
    compression: Option<Compression>,
    out: &mut Output,
    progress: &mut dyn FnMut(u64),
) -> Result<ScanStats> {
    let compression = match compression.unwrap_or(Compression::None) {
        Compression::None => None,
        Compression::Zstd => Some(CompressionType::ZSTD),
        Compression::Snappy => {
            return Err(Error::new(ErrorKind::Usage, "the Arrow IPC format has no snappy compression")
                .with_hint("use --compression zstd or none"));
        }
    };
    let options = IpcWriteOptions::default().try_with_compression(compression).map_err(arrow_error)?;
    // The first batch comes before the writer, which writes at once: what is refused leaves an existing file alone.
    let mut next = batches.next().transpose()?;
    let schema = batches.schema();
    let buffered = io::BufWriter::with_capacity(256 << 10, out);
    let mut writer = StreamWriter::try_new_with_options(buffered, &schema, options).map_err(arrow_error)?;
    while let Some(batch) = next {
        writer.write(&batch).map_err(arrow_error)?;
        progress(batches.pages());
        next = match batches.next().transpose() {
            Ok(next) => next,
            Err(error) => {
                // The rows before the bad one are right; a consumer of a pipe shall have them. The end mark is missing.
                writer.get_mut().flush().map_err(|e| io_error(&e))?;
                return Err(error);
            }
        };
    }
    writer.finish().map_err(arrow_error)?;
    writer.get_mut().flush().map_err(|e| io_error(&e))?;
    Ok(batches.stats().scan)
}

fn parquet_file(
    mut batches: ParallelBatches,
    compression: Option<Compression>,
    out: &mut Output,
    progress: &mut dyn FnMut(u64),
) -> Result<ScanStats> {
    let compression = match compression.unwrap_or(Compression::Zstd) {
        Compression::None => ParquetCompression::UNCOMPRESSED,
        Compression::Snappy => ParquetCompression::SNAPPY,
        Compression::Zstd => ParquetCompression::ZSTD(ZstdLevel::default()),
    };
    let properties = WriterProperties::builder()
        .set_compression(compression)
        .set_max_row_group_row_count(Some(ROW_GROUP_ROWS))
        .set_created_by(concat!("heapscan ", env!("CARGO_PKG_VERSION")).to_owned())
        .build();
    let mut next = batches.next().transpose()?;
    let mut writer = ArrowWriter::try_new(out, batches.schema(), Some(properties)).map_err(parquet_error)?;
    while let Some(batch) = next {
        writer.write(&batch).map_err(parquet_error)?;
        if writer.memory_size() >= ROW_GROUP_BYTES {
            writer.flush().map_err(parquet_error)?;
        }
        progress(batches.pages());
        next = batches.next().transpose()?;
    }
    writer.close().map_err(parquet_error)?;
    Ok(batches.stats().scan)
}

#[cold]
fn io_error(error: &io::Error) -> Error {
    let message = format!("cannot write the output: {error}");
    match error.raw_os_error() {
        Some(errno) => Error::new(ErrorKind::Io, message).with_errno(errno),
        None => Error::new(ErrorKind::Io, message),
    }
}

#[cold]
fn arrow_error(error: ArrowError) -> Error {
    match error {
        ArrowError::IoError(_, error) => io_error(&error),
        error => refused("the Arrow stream cannot be written", error),
    }
}

#[cold]
fn parquet_error(error: ParquetError) -> Error {
    match error {
        ParquetError::External(inner) => match inner.downcast::<io::Error>() {
            Ok(error) => io_error(&error),
            Err(inner) => refused("the Parquet file cannot be written", ParquetError::External(inner)),
        },
        error => refused("the Parquet file cannot be written", error),
    }
}

fn refused(what: &str, error: impl StdError + Send + Sync + 'static) -> Error {
    Error::new(ErrorKind::Unsupported, format!("{what}: {error}")).with_source(error)
}

/// `text`, `float`, `decimal(P,S)`.
pub(crate) fn numeric(text: &str) -> Result<NumericPolicy, String> {
    let decimal = |text: &str| {
        let (precision, scale) = text.strip_prefix("decimal(")?.strip_suffix(')')?.split_once(',')?;
        Some(NumericPolicy::Decimal { precision: precision.trim().parse().ok()?, scale: scale.trim().parse().ok()? })
    };
    match text {
        "text" => Ok(NumericPolicy::Text),
        "float" => Ok(NumericPolicy::LossyFloat64),
        _ => decimal(text)
            .ok_or_else(|| format!("{text:?} is none of text, float, or decimal(P,S) such as decimal(38,9)")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_for_numeric() {
        assert_eq!(numeric("text"), Ok(NumericPolicy::Text));
        assert_eq!(numeric("float"), Ok(NumericPolicy::LossyFloat64));
        assert_eq!(numeric("decimal(38, 9)"), Ok(NumericPolicy::Decimal { precision: 38, scale: 9 }));
        assert!(numeric("decimal(38)").is_err() && numeric("decimal(999,1)").is_err() && numeric("double").is_err());
    }
}
