//! A slice in memory of its own: descriptors and bucket heads lie where the plan says, not where the heap happens to be.

use crate::Result;
use heapscan_placement::bind::Placed;
use std::{marker::PhantomData, ops::Deref, ptr::NonNull};

/// `len` values of `T` at the start of a mapping, for as long as the mapping lives.
///
/// `T` is meant to be made of atomics: the slice is only ever shared. Values are not dropped.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    start: NonNull<T>,
    len: usize,
    placed: Placed,
    values: PhantomData<T>,
}

impl<T> Slab<T> {
    /// The memory, to ask where it is.
    pub(crate) fn placed(&self) -> &Placed {
        &self.placed
    }
}

#[allow(unsafe_code, reason = "a typed slice over a mapping")]
mod fence {
    use super::*;

    // SAFETY: a slab owns its mapping, which belongs to the process, and gives out shared references to `T` only.
    unsafe impl<T: Send> Send for Slab<T> {}
    // SAFETY: as above; `&Slab<T>` is `&[T]` and a look at the mapping's report.
    unsafe impl<T: Sync> Sync for Slab<T> {}

    impl<T> Slab<T> {
        /// Fills `placed` with `len` values.
        ///
        /// # Errors
        /// `Limit` if the memory is too small or its pages cannot be had.
        pub(crate) fn new(placed: Placed, len: usize, make: impl Fn() -> T) -> Result<Self> {
            let start = placed.mapping.as_ptr().cast::<T>();
            let bytes = len.checked_mul(size_of::<T>()).filter(|&bytes| bytes <= placed.mapping.len());
            let (Some(bytes), true) = (bytes, start.is_aligned()) else {
                return Err(crate::Error::new(
                    crate::ErrorKind::Limit,
                    format!("{len} descriptors do not fit {} bytes", placed.mapping.len()),
                ));
            };
            if !placed.populated {
                placed.mapping.populate(0..bytes).map_err(super::super::partition::refused)?;
            }
            for index in 0..len {
                // SAFETY: index < len and len values fit the mapping, which is writable, populated, aligned for `T` (just
                // looked at) and known to nobody else yet.
                unsafe { start.add(index).write(make()) };
            }
            Ok(Self { start, len, placed, values: PhantomData })
        }
    }

    impl<T> Deref for Slab<T> {
        type Target = [T];

        fn deref(&self) -> &[T] {
            // SAFETY: `new` wrote `len` values there; the mapping lives and stays where it is as long as `self`, and no
            // `&mut` to it or to the values is ever made.
            unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
        }
    }
}
