//! The checksum of a data page (`src/include/storage/checksum_impl.h`): FNV-1a turned into 32 parallel sums, so that
//! it vectorises, with a shift that lets high bits reach low ones.
//!
//! The loop is written over arrays of 32 lanes and compiled three times, for the baseline, AVX2 and AVX-512; which one
//! runs is decided once per process. Besides its verdict it streams the page through the cache, which makes decoding
//! it afterwards faster.

#[cfg(target_arch = "x86_64")]
mod dispatch;

/// Parallel sums; also the 4-byte words of one row.
const SUMS: usize = 32;
/// Bytes a row: the page is seen as a matrix of rows of 32 words.
const ROW: usize = SUMS * 4;
/// FNV's 32-bit prime.
const PRIME: u32 = 16_777_619;
/// Where each sum starts (`checksumBaseOffsets`).
const BASE: [u32; SUMS] = [
    0x5B1F_36E9,
    0xB852_5960,
    0x02AB_50AA,
    0x1DE6_6D2A,
    0x79FF_467A,
    0x9BB9_F8A3,
    0x217E_7CD2,
    0x83E1_3D2C,
    0xF8D4_474F,
    0xE39E_B970,
    0x42C6_AE16,
    0x9932_16FA,
    0x7B09_3B5D,
    0x98DA_FF3C,
    0xF718_902A,
    0x0B1C_9CDB,
    0xE58F_764B,
    0x1876_36BC,
    0x5D7B_3BB1,
    0xE73D_E7DE,
    0x92BE_C979,
    0xCCA6_C0B2,
    0x304A_0979,
    0x85AA_43D4,
    0x7831_25BB,
    0x6CA8_EAA2,
    0xE407_EAC6,
    0x4B5C_FC3E,
    0x9FBF_8C76,
    0x15CA_20BE,
    0xF2CA_9FD3,
    0x959B_D756,
];

/// The checksum that the page should carry in `pd_checksum` when it lies at `block` (counted over all segments).
/// The stored `pd_checksum` does not matter: it counts as zero.
///
/// Bytes behind the last whole multiple of 128 do not count; block sizes are multiples of it.
#[inline]
pub fn page_checksum(page: &[u8], block: u32) -> u16 {
    #[cfg(target_arch = "x86_64")]
    {
        dispatch::page_checksum(page, block)
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        portable(page, block)
    }
}

/// The checksums of consecutive pages of `block_size` bytes, the first of which lies at `first_block`; `out` then has
/// one for each whole page of `bytes`.
///
/// One page alone waits most of the time for its own multiplications: several side by side take little longer than one
/// as long as they come from the cache.
pub fn page_checksums(bytes: &[u8], block_size: usize, first_block: u32, out: &mut Vec<u16>) {
    out.clear();
    if block_size == 0 {
        return;
    }
    let mut block = first_block;
    let mut groups = bytes.chunks_exact(block_size * GROUP);
    for group in groups.by_ref() {
        let mut checksums = [0; GROUP];
        #[cfg(target_arch = "x86_64")]
        dispatch::group_checksums(group, block, &mut checksums);
        #[cfg(not(target_arch = "x86_64"))]
        portable_group(group, block, &mut checksums);
        out.extend(checksums);
        block = block.wrapping_add(GROUP as u32);
    }
    for page in groups.remainder().chunks_exact(block_size) {
        out.push(page_checksum(page, block));
        block = block.wrapping_add(1);
    }
}

/// Pages side by side in [`page_checksums`]: what the registers of AVX-512 hold.
const GROUP: usize = 4;

/// The loop for the baseline of the target.
fn portable(page: &[u8], block: u32) -> u16 {
    compute([page], block)[0]
}

/// [`GROUP`] pages for the baseline of the target, one after the other: its registers hold no more.
fn portable_group(group: &[u8], block: u32, out: &mut [u16; GROUP]) {
    compute_group::<1>(group, block, out);
}

/// A group, `P` pages at a time.
#[inline(always)]
fn compute_group<const P: usize>(group: &[u8], block: u32, out: &mut [u16; GROUP]) {
    let size = group.len() / GROUP;
    for first in (0..GROUP).step_by(P) {
        let pages: [&[u8]; P] = std::array::from_fn(|p| &group[(first + p) * size..(first + p + 1) * size]);
        out[first..first + P].copy_from_slice(&compute(pages, block.wrapping_add(first as u32)));
    }
}

/// The loop itself, over `P` consecutive pages of the same size side by side; always inlined so that each caller
/// compiles it for its own instruction set.
#[inline(always)]
fn compute<const P: usize>(pages: [&[u8]; P], first_block: u32) -> [u16; P] {
    let pages = pages.map(|page| page.as_chunks::<ROW>().0);
    let rows = pages.iter().map(|page| page.len()).min().unwrap_or(0);
    let mut sums = [BASE; P];
    for (sums, page) in sums.iter_mut().zip(&pages) {
        if let Some(first) = page.first() {
            // `pd_checksum` counts as zero.
            let mut first = *first;
            first[8] = 0;
            first[9] = 0;
            mix_row(sums, &first);
        }
    }
    #[expect(
        clippy::needless_range_loop,
        reason = "through iterators the sums leave the registers: a fifth of the speed"
    )]
    for row in 1..rows {
        for p in 0..P {
            mix_row(&mut sums[p], &pages[p][row]);
        }
    }
    let mut block = first_block;
    sums.map(|sums| {
        let checksum = fold(sums, block);
        block = block.wrapping_add(1);
        checksum
    })
}

/// The checksum in the sums of a whole page.
#[inline(always)]
fn fold(mut sums: [u32; SUMS], block: u32) -> u16 {
    // Two rounds of zeros let the last row reach all bits.
    for _ in 0..2 {
        for sum in &mut sums {
            *sum = mix(*sum, 0);
        }
    }
    let folded = sums.iter().fold(0, |all, sum| all ^ sum) ^ block;
    // Never 0, so that 0 can mean "no checksum".
    (folded % 65_535 + 1) as u16
}

#[inline(always)]
fn mix_row(sums: &mut [u32; SUMS], row: &[u8; ROW]) {
    let (words, _) = row.as_chunks::<4>();
    for (sum, word) in sums.iter_mut().zip(words) {
        *sum = mix(*sum, u32::from_le_bytes(*word));
    }
}

#[inline(always)]
fn mix(sum: u32, value: u32) -> u32 {
    let x = sum ^ value;
    x.wrapping_mul(PRIME) ^ (x >> 17)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The definition, word by word, with nothing clever.
    fn by_definition(page: &[u8], block: u32) -> u16 {
        let mut sums = BASE;
        let mut words: Vec<u32> = page.chunks_exact(4).map(|w| u32::from_le_bytes([w[0], w[1], w[2], w[3]])).collect();
        words[2] &= 0xffff_0000;
        words.extend([0; 2 * SUMS]);
        for (i, word) in words.iter().enumerate() {
            let x = sums[i % SUMS] ^ word;
            sums[i % SUMS] = (x.wrapping_mul(PRIME)) ^ (x >> 17);
        }
        let all = sums.iter().fold(0, |a, s| a ^ s) ^ block;
        (all % 65_535 + 1) as u16
    }

    fn noise(size: usize, seed: u64) -> Vec<u8> {
        let mut state = seed | 1;
        (0..size)
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state as u8
            })
            .collect()
    }

    #[test]
    fn all_variants_agree_with_the_definition() {
        for size in [1024, 2048, 4096, 8192, 16_384, 32_768] {
            for (seed, block) in [(1u64, 0u32), (2, 1), (3, 131_072), (4, u32::MAX - 1)] {
                let page = noise(size, seed);
                let want = by_definition(&page, block);
                assert_eq!(portable(&page, block), want);
                assert_eq!(page_checksum(&page, block), want);
                #[cfg(target_arch = "x86_64")]
                for got in dispatch::each(&page, block) {
                    assert_eq!(got, want);
                }
            }
        }
    }

    #[test]
    fn pages_side_by_side_are_pages() {
        for (pages, block) in [(0usize, 0u32), (1, 5), (4, 131_070), (11, u32::MAX - 4)] {
            let bytes = noise(pages * 4096 + 100, 9);
            let want: Vec<u16> =
                (0..pages).map(|p| by_definition(&bytes[p * 4096..][..4096], block.wrapping_add(p as u32))).collect();
            let mut got = vec![1, 2, 3];
            page_checksums(&bytes, 4096, block, &mut got);
            assert_eq!(got, want);
            #[cfg(target_arch = "x86_64")]
            if pages >= GROUP {
                for group in dispatch::each_group(&bytes[..GROUP * 4096], block) {
                    assert_eq!(group, want[..GROUP]);
                }
            }
        }
    }

    #[test]
    fn the_stored_checksum_does_not_count_and_every_other_bit_does() {
        let page = noise(8192, 7);
        let want = page_checksum(&page, 5);
        for at in 0..page.len() {
            let mut other = page.clone();
            other[at] ^= 0x10;
            assert_eq!(page_checksum(&other, 5) == want, at == 8 || at == 9, "byte {at}");
        }
        assert_ne!(page_checksum(&page, 6), want);
    }
}
