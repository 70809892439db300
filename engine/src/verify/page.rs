//! Pages of any kind: what `PageIsVerified` of the server tests.

use crate::heap::{PageFault, VerifyMode, checksum::page_checksum};

/// `SizeOfPageHeaderData`.
const HEADER: u16 = 24;
/// `PD_VALID_FLAG_BITS`.
const FLAGS: u16 = 0x0007;
/// `PG_PAGE_LAYOUT_VERSION`.
const LAYOUT_VERSION: u16 = 4;

/// Checks the header and, if `verify` says so, the checksum of a page of a relation of any kind. `Ok(false)`: it is all
/// zero, which is a page that was never written.
pub(super) fn check_any(bytes: &[u8], block: u32, verify: VerifyMode) -> Result<bool, PageFault> {
    let word = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
    if bytes.len() < usize::from(HEADER) {
        return Err(PageFault::Size { bytes: bytes.len() });
    }
    let (lower, upper, special) = (word(12), word(14), word(16));
    if upper == 0 {
        return match bytes.iter().position(|&b| b != 0) {
            None => Ok(false),
            Some(at) => Err(PageFault::NewNotZero { at }),
        };
    }
    if verify == VerifyMode::Checksum {
        let (stored, computed) = (word(8), page_checksum(bytes, block));
        if stored != computed {
            return Err(PageFault::Checksum { stored, computed });
        }
    }
    let (size, expected) = (word(18), bytes.len() as u16 | LAYOUT_VERSION);
    if size != expected {
        return Err(PageFault::Layout { word: size, expected });
    }
    if word(10) & !FLAGS != 0 {
        return Err(PageFault::Flags { flags: word(10) });
    }
    let ordered = lower >= HEADER
        && lower <= upper
        && upper <= special
        && usize::from(special) <= bytes.len()
        && special.is_multiple_of(8);
    if !ordered {
        return Err(PageFault::Bounds { lower, upper, special });
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use heapscan_fixtures::page::PageBuilder;

    #[test]
    fn pages_with_one_wrong_bit() {
        let page = PageBuilder::new(8192, 7).build(true);
        assert_eq!(check_any(&page, 7, VerifyMode::Checksum), Ok(true));
        assert!(matches!(check_any(&page, 8, VerifyMode::Checksum), Err(PageFault::Checksum { .. })));
        assert_eq!(check_any(&page, 8, VerifyMode::Structure), Ok(true));
        for bit in 0..24 * 8 {
            let mut page = page.clone();
            page[bit / 8] ^= 1 << (bit % 8);
            assert!(check_any(&page, 7, VerifyMode::Checksum).is_err(), "bit {bit}");
        }
        assert_eq!(check_any(&[0; 8192], 7, VerifyMode::Checksum), Ok(false));
        let mut almost = vec![0; 8192];
        almost[8191] = 1;
        assert_eq!(check_any(&almost, 7, VerifyMode::Structure), Err(PageFault::NewNotZero { at: 8191 }));
        assert!(check_any(&[1, 2], 7, VerifyMode::Structure).is_err());
    }
}
