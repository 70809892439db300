//! Which compilation of the checksum loop runs.
#![allow(unsafe_code, reason = "calling a function compiled for CPU features needs the proof that they exist")]

use super::{compute, portable};
use std::sync::OnceLock;

type Variant = fn(&[u8], u32) -> u16;

/// Runs the best variant of this CPU.
#[inline]
pub(super) fn page_checksum(page: &[u8], block: u32) -> u16 {
    static BEST: OnceLock<Variant> = OnceLock::new();
    BEST.get_or_init(best)(page, block)
}

fn best() -> Variant {
    variants().pop().unwrap_or(portable)
}

/// The variants that this CPU runs, best last.
fn variants() -> Vec<Variant> {
    let mut usable: Vec<Variant> = vec![portable];
    if is_x86_feature_detected!("avx2") {
        usable.push(|page, block| {
            // SAFETY: `avx2` needs AVX2 only, which was detected before this closure was handed out.
            unsafe { avx2(page, block) }
        });
    }
    if is_x86_feature_detected!("avx512f") {
        usable.push(|page, block| {
            // SAFETY: `avx512` needs AVX-512F only, which was detected before this closure was handed out.
            unsafe { avx512(page, block) }
        });
    }
    usable
}

#[target_feature(enable = "avx2")]
fn avx2(page: &[u8], block: u32) -> u16 {
    compute(page, block)
}

#[target_feature(enable = "avx512f")]
fn avx512(page: &[u8], block: u32) -> u16 {
    compute(page, block)
}

/// What every usable variant says.
#[cfg(test)]
pub(super) fn each(page: &[u8], block: u32) -> Vec<u16> {
    variants().into_iter().map(|variant| variant(page, block)).collect()
}
