//! From which partition a stream takes its next frames.
//!
//! Dangers:
//! - Pure locality is wrong twice: a lone scan would own one partition of n, and a busy node would throw out what it
//!   needs while another keeps what nobody needs. No locality makes memory remote. What is right between is a policy.
//! - A policy must be cheap enough to be forgotten: nothing here is on the way of a hit, and a claim of frames reads
//!   cache lines only that change once in many hundred claims. Whatever is counted is counted by the stream ([`Turn`])
//!   and added to shared counters once in many frames.
//! - Nothing here claims frames or knows of them: it is told how far the hands are, and says a number. So the simulator
//!   in `benches/` runs this very code.
//!
//! The way through: a stream calls [`Balance::allocate`], which asks the [`Routes`] for a partition and the pool for its
//! frames. Once in [`Layout::interval`] allocations one of the streams reads all hands and lets the [`Balancer`] draw
//! the routes anew.
//!
//! # What eviction age is
//! Time is counted in *allocations of the whole pool*: it stands still when nothing is evicted, and does not depend on
//! the machine. The eviction age of a partition is how long ago the frames that its hand comes to next were last
//! visited: as the hand goes round, the time of its last lap. A page that is not used again within this age is lost. An
//! undivided pool has one hand, so the same age everywhere; and partitions of any size have the same age if their hands
//! go round equally fast, in laps per allocation. That is what [`Age`] brings about, and all it has to look at.

mod age;
mod allocate;
mod budget;
mod eviction_age;
mod layout;
mod off;
mod routes;
#[cfg(all(test, not(heapscan_loom)))]
mod tests;

pub use age::Age;
pub use allocate::{Balance, Taken};
pub use budget::Budget;
pub use layout::Layout;
pub use off::Off;
pub use routes::{Routes, Turn};

use serde::Serialize;
use std::{fmt, str::FromStr};

/// Which policy to use: `--numa-balance`.
///
/// The default was chosen by simulation (the program `numa-simulation` in `benches/`), 4 nodes, hits of runs 2 to 5 of a
/// lone scan over 80 % of the pool: `off` 0 %, `budget` 75 %, `age` 99 %; fill of idle partitions after 1.05 pools of
/// requests: 0, 29 and 100 %; one client making 50 % or 90 % of the accesses, hits against an undivided pool: 80 and
/// 38 %, 97 and 99 %, 98 and 99 %, with 87 and 94 % of `age`'s victims local. Under even load all keep over 99 % local.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum NumaBalance {
    /// The home partition, and others only if nothing can be had there.
    Off,
    /// Shares by how much each home asks for, as proposed for PostgreSQL.
    Budget,
    /// The home partition as long as pages there do not live markedly shorter than elsewhere.
    #[default]
    Age,
}

impl NumaBalance {
    /// All there are.
    pub const ALL: [Self; 3] = [Self::Off, Self::Budget, Self::Age];

    /// The policy itself, for partitions laid out like this.
    pub fn balancer(self, layout: &Layout) -> Box<dyn Balancer> {
        match self {
            Self::Off => Box::new(Off),
            Self::Budget => Box::new(Budget::new(layout)),
            Self::Age => Box::new(Age::new(layout)),
        }
    }
}

impl fmt::Display for NumaBalance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Off => "off",
            Self::Budget => "budget",
            Self::Age => "age",
        })
    }
}

impl FromStr for NumaBalance {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|balance| balance.to_string() == text)
            .ok_or_else(|| format!("unknown numa balance {text:?}: use off, budget or age"))
    }
}

/// What a policy is told.
#[derive(Clone, Copy, Debug)]
pub struct Figures<'a> {
    /// How the partitions lie.
    pub layout: &'a Layout,
    /// For each partition: frames that streams at home there asked for since the beginning, wherever they got them.
    pub asked: &'a [u64],
    /// For each partition: frames of it that streams of whatever home got since the beginning.
    pub served: &'a [u64],
    /// For each partition: frames that its hand has passed since the beginning.
    pub passed: &'a [u64],
}

/// A policy. It is never asked for a partition: it draws the [`Routes`] now and then, and streams follow them.
pub trait Balancer: fmt::Debug + Send {
    /// Draws the routes anew, and says after how many allocations of the whole pool they should be drawn again: at most
    /// [`Layout::interval`]. Called by one thread at a time, with no lock of the pool held; also when a partition was
    /// found to have nothing.
    fn draw(&mut self, figures: Figures<'_>, routes: &Routes) -> u64;
}
