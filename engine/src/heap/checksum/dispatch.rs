//! Which compilation of the checksum loop runs.
#![allow(unsafe_code, reason = "calling a function compiled for CPU features needs the proof that they exist")]

use super::{GROUP, compute, compute_group, portable, portable_group};
use std::sync::OnceLock;

/// One compilation of the loop.
#[derive(Clone, Copy)]
struct Variant {
    page: fn(&[u8], u32) -> u16,
    group: fn(&[u8], u32, &mut [u16; GROUP]),
}

/// The checksum of a page by the best variant of this CPU.
#[inline]
pub(super) fn page_checksum(page: &[u8], block: u32) -> u16 {
    (best().page)(page, block)
}

/// The checksums of a group of pages by the best variant of this CPU.
#[inline]
pub(super) fn group_checksums(group: &[u8], block: u32, out: &mut [u16; GROUP]) {
    (best().group)(group, block, out);
}

#[inline]
fn best() -> Variant {
    static BEST: OnceLock<Variant> = OnceLock::new();
    *BEST.get_or_init(|| variants().pop().unwrap_or(PORTABLE))
}

const PORTABLE: Variant = Variant { page: portable, group: portable_group };

/// The variants that this CPU runs, best last.
fn variants() -> Vec<Variant> {
    let mut usable = vec![PORTABLE];
    if is_x86_feature_detected!("avx2") {
        usable.push(Variant {
            page: |page, block| {
                // SAFETY: `avx2` needs AVX2 only, which was detected before this closure was handed out.
                unsafe { avx2(page, block) }
            },
            group: |group, block, out| {
                // SAFETY: `avx2_group` needs AVX2 only, which was detected before this closure was handed out.
                unsafe { avx2_group(group, block, out) }
            },
        });
    }
    if is_x86_feature_detected!("avx512f") {
        usable.push(Variant {
            page: |page, block| {
                // SAFETY: `avx512` needs AVX-512F only, which was detected before this closure was handed out.
                unsafe { avx512(page, block) }
            },
            group: |group, block, out| {
                // SAFETY: `avx512_group` needs AVX-512F only, which was detected before this closure was handed out.
                unsafe { avx512_group(group, block, out) }
            },
        });
    }
    usable
}

#[target_feature(enable = "avx2")]
fn avx2(page: &[u8], block: u32) -> u16 {
    compute([page], block)[0]
}

/// Two pages are eight of the sixteen registers; the rest is needed for what lies between.
#[target_feature(enable = "avx2")]
fn avx2_group(group: &[u8], block: u32, out: &mut [u16; GROUP]) {
    compute_group::<2>(group, block, out);
}

#[target_feature(enable = "avx512f")]
fn avx512(page: &[u8], block: u32) -> u16 {
    compute([page], block)[0]
}

#[target_feature(enable = "avx512f")]
fn avx512_group(group: &[u8], block: u32, out: &mut [u16; GROUP]) {
    compute_group::<GROUP>(group, block, out);
}

/// What every usable variant says of a page.
#[cfg(test)]
pub(super) fn each(page: &[u8], block: u32) -> Vec<u16> {
    variants().into_iter().map(|variant| (variant.page)(page, block)).collect()
}

/// What every usable variant says of a group.
#[cfg(test)]
pub(super) fn each_group(group: &[u8], block: u32) -> Vec<[u16; GROUP]> {
    let run = |variant: Variant| {
        let mut out = [0; GROUP];
        (variant.group)(group, block, &mut out);
        out
    };
    variants().into_iter().map(run).collect()
}
