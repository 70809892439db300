//! Values out of line: putting their chunks together again (`access/common/detoast.c` is the server's way).

use super::{
    load,
    varlena::{self, CompressionMethod, ToastPointer, Varlena},
};
use crate::{Error, ErrorKind, Result};

/// Where chunks come from. The engine's implementation reads them through the buffer pool.
pub trait ChunkSource {
    /// Calls `visit` with `chunk_seq` and `chunk_data` of every visible chunk of a value, in the order of `chunk_seq`.
    ///
    /// # Errors
    /// What the relation's pages or `visit` say. No chunks at all is no error here.
    fn chunks(&self, toast_relation: u32, value_id: u32, visit: &mut dyn FnMut(i32, &[u8]) -> Result<()>)
    -> Result<()>;
}

/// A source for relations without out-of-line values: every pointer is an error.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoToast;

impl ChunkSource for NoToast {
    fn chunks(&self, toast_relation: u32, _: u32, _: &mut dyn FnMut(i32, &[u8]) -> Result<()>) -> Result<()> {
        Err(Error::new(
            ErrorKind::Value,
            format!("value lies in TOAST relation {toast_relation}, but the relation has none"),
        ))
    }
}

/// The bytes that are stored out of line for `pointer`, still compressed if they are, into `out` (replacing its
/// content).
///
/// # Errors
/// `Value` naming the value if a chunk is missing, twice there, or of the wrong size: never a shortened value.
pub fn assemble(pointer: &ToastPointer, source: &dyn ChunkSource, out: &mut Vec<u8>) -> Result<()> {
    out.clear();
    let size = pointer.external_size as usize;
    // The size may be a lie: reserve no more than is cheap to lose.
    out.reserve(size.min(KEEP));
    let mut chunk_size = 0;
    let mut next = 0i32;
    source.chunks(pointer.toast_relation, pointer.value_id, &mut |seq, data| {
        if seq != next {
            return Err(broken(pointer, format!("chunk {seq} comes where chunk {next} should")));
        }
        // All chunks but the last have one size, which depends on the block size.
        if next == 0 {
            chunk_size = data.len();
        }
        let rest = size - out.len();
        if data.is_empty() || data.len() != rest.min(chunk_size) {
            return Err(broken(pointer, format!("chunk {seq} has {} bytes where {rest} are left", data.len())));
        }
        out.extend_from_slice(data);
        next += 1;
        Ok(())
    })?;
    if out.len() != size {
        return Err(broken(pointer, format!("{next} chunks have {} bytes of {size}", out.len())));
    }
    Ok(())
}

#[cold]
fn broken(pointer: &ToastPointer, what: String) -> Error {
    Error::new(
        ErrorKind::Value,
        format!("value {} of TOAST relation {}: {what}", pointer.value_id, pointer.toast_relation),
    )
}

/// Gives the plain bytes of varlena values, wherever they lie; reuses its buffers from value to value.
#[derive(Debug)]
pub struct Detoaster<S> {
    source: S,
    stored: Vec<u8>,
    plain: Vec<u8>,
}

/// Buffers larger than this are given back when a small value follows.
const KEEP: usize = 1 << 20;

impl<S: ChunkSource> Detoaster<S> {
    /// A detoaster that takes chunks from `source`.
    pub fn new(source: S) -> Self {
        Self { source, stored: Vec::new(), plain: Vec::new() }
    }

    /// The plain bytes, without header, of the varlena `raw` (with its header, as
    /// [`Datum::Varlena`](super::Datum::Varlena) has it). Borrows from `raw` when nothing has to be done.
    ///
    /// # Errors
    /// `Value` if the value is damaged or its chunks are; what the source says.
    pub fn payload<'a>(&'a mut self, raw: &'a [u8]) -> Result<&'a [u8]> {
        match Varlena::parse(raw)?.0 {
            Varlena::Plain(bytes) => Ok(bytes),
            Varlena::Compressed { raw_size, method, data } => {
                release(&mut self.plain, raw_size as usize);
                varlena::decompress(method, data, raw_size, &mut self.plain)?;
                Ok(&self.plain)
            }
            Varlena::External(pointer) => self.external(&pointer),
        }
    }

    fn external(&mut self, pointer: &ToastPointer) -> Result<&[u8]> {
        release(&mut self.stored, pointer.external_size as usize);
        assemble(pointer, &self.source, &mut self.stored)?;
        if !pointer.is_compressed() {
            return Ok(&self.stored);
        }
        // The chunks of a compressed value begin with its `va_tcinfo`: plain size, and the method in the top bits.
        let plain_size = pointer.raw_size.saturating_sub(varlena::HEADER as u32);
        let Some(data) = self.stored.get(varlena::HEADER..) else {
            return Err(broken(pointer, "compressed value without its header".to_owned()));
        };
        let info = load::u32(&self.stored, 0);
        let method = match info >> 30 {
            0 => CompressionMethod::Pglz,
            1 => CompressionMethod::Lz4,
            id => return Err(broken(pointer, format!("compression method {id} does not exist"))),
        };
        if info & 0x3fff_ffff != plain_size || method != pointer.method {
            return Err(broken(pointer, "its header contradicts the pointer to it".to_owned()));
        }
        release(&mut self.plain, plain_size as usize);
        varlena::decompress(method, data, plain_size, &mut self.plain)
            .map_err(|error| broken(pointer, error.to_string()))?;
        Ok(&self.plain)
    }
}

/// One huge value must not keep its memory for the rest of a scan.
fn release(buffer: &mut Vec<u8>, needed: usize) {
    if buffer.capacity() > KEEP && needed <= KEEP {
        *buffer = Vec::new();
    }
}

#[cfg(test)]
mod tests {
    use super::{super::testing::*, *};

    type List = Vec<(i32, Vec<u8>)>;

    struct Chunks(List);

    impl ChunkSource for Chunks {
        fn chunks(&self, _: u32, _: u32, visit: &mut dyn FnMut(i32, &[u8]) -> Result<()>) -> Result<()> {
            self.0.iter().try_for_each(|(seq, data)| visit(*seq, data))
        }
    }

    fn pointer(raw_size: usize, external_size: usize, method: CompressionMethod) -> ToastPointer {
        ToastPointer {
            raw_size: raw_size as u32,
            external_size: external_size as u32,
            method,
            value_id: 4711,
            toast_relation: 16_403,
        }
    }

    fn cut(stored: &[u8], size: usize) -> List {
        (0..).zip(stored.chunks(size).map(<[u8]>::to_vec)).collect()
    }

    #[test]
    fn plain_values_around_the_chunk_edges() {
        for length in [0, 1, 1995, 1996, 1997, 3992, 3993, 10_000] {
            let plain: Vec<u8> = (0..length).map(|i| i as u8).collect();
            let raw = external(&pointer(length + 4, length, CompressionMethod::Pglz));
            let mut detoaster = Detoaster::new(Chunks(cut(&plain, 1996)));
            assert_eq!(detoaster.payload(&raw).unwrap(), plain);
        }
    }

    #[test]
    fn compressed_values_lose_their_header_word() {
        let plain: Vec<u8> = (0..30_000u32).map(|i| (i / 100) as u8).collect();
        let streams = [
            (CompressionMethod::Pglz, 0u32, pglz::compress(&plain, &pglz::Strategy::ALWAYS).unwrap()),
            (CompressionMethod::Lz4, 1, lz4_flex::block::compress(&plain)),
        ];
        for (method, id, stream) in streams {
            let mut stored = (id << 30 | plain.len() as u32).to_le_bytes().to_vec();
            stored.extend(&stream);
            let at = pointer(plain.len() + 4, stored.len(), method);
            let mut detoaster = Detoaster::new(Chunks(cut(&stored, 100)));
            assert_eq!(detoaster.payload(&external(&at)).unwrap(), plain);
            stored[1] ^= 1;
            let mut detoaster = Detoaster::new(Chunks(cut(&stored, 100)));
            assert!(detoaster.payload(&external(&at)).is_err());
            let inline = compressed(id, plain.len() as u32, &stream);
            assert_eq!(Detoaster::new(NoToast).payload(&inline).unwrap(), plain);
        }
    }

    #[test]
    fn no_value_is_ever_shortened_or_mixed() {
        let plain: Vec<u8> = (0..5000u32).map(|i| i as u8).collect();
        let good = cut(&plain, 1996);
        let at = pointer(5004, 5000, CompressionMethod::Pglz);
        let mut out = Vec::new();
        assemble(&at, &Chunks(good.clone()), &mut out).unwrap();
        assert_eq!(out, plain);
        let damage: [fn(&mut List); 8] = [
            |c| c.clear(),
            |c| drop(c.remove(0)),
            |c| drop(c.remove(1)),
            |c| drop(c.pop()),
            |c| c.insert(1, c[1].clone()),
            |c| c.swap(0, 1),
            |c| c[1].1.truncate(1995),
            |c| c[2].1.push(0),
        ];
        for (case, damage) in damage.iter().enumerate() {
            let mut chunks = good.clone();
            damage(&mut chunks);
            let error = assemble(&at, &Chunks(chunks), &mut out).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Value, "{case}");
            assert!(error.to_string().contains("value 4711 of TOAST relation 16403"), "{error}");
        }
        let error = Detoaster::new(NoToast).payload(&external(&at)).unwrap_err();
        assert!(error.to_string().contains("16403"));
    }
}
