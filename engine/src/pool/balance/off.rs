//! No balancing.

use super::{Balancer, Figures, Routes};

/// Each stream takes from its home partition. Only if that has nothing, [`Balance`](super::Balance) goes on to the
/// nearest that has.
#[derive(Clone, Copy, Debug)]
pub struct Off;

impl Balancer for Off {
    fn draw(&mut self, figures: Figures<'_>, _: &Routes) -> u64 {
        figures.layout.interval()
    }
}
