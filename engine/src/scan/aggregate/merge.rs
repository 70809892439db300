//! Putting aggregates together that were taken over parts of a table.

use super::{
    Running,
    accumulator::{Accumulator, Load, is_less},
};

impl Running {
    /// An aggregate like this one over nothing, for a thread that scans a part of the table. Sums of floats are not taken
    /// but gathered: see [`Accumulator::add_floats`].
    pub(in crate::scan) fn for_thread(&self) -> Self {
        let accumulator = match self.accumulator {
            Accumulator::Float4 { .. } => Accumulator::Floats { load: Load::Float4, values: Vec::new() },
            Accumulator::Float8 { .. } => Accumulator::Floats { load: Load::Float8, values: Vec::new() },
            ref other => other.clone(),
        };
        Self { accumulator, place: self.place, expression: self.expression.clone() }
    }

    /// Takes out an extreme of floats; of anything else nothing.
    pub(in crate::scan) fn take_extreme(&mut self) -> Self {
        let mut taken = Self { accumulator: Accumulator::Count(0), place: self.place, expression: None };
        if let Accumulator::ExtremeFloat { load, want_max, best } = &mut self.accumulator {
            taken.accumulator = Accumulator::ExtremeFloat { load: *load, want_max: *want_max, best: best.take() };
        }
        taken
    }
}

impl Accumulator {
    /// Whether it is a sum that depends on the order of the values.
    pub(in crate::scan) fn is_float_sum(&self) -> bool {
        matches!(self, Self::Float4 { .. } | Self::Float8 { .. })
    }

    /// Whether it is an extreme that depends on the order of the values (which zero, which NaN).
    pub(in crate::scan) fn is_float_extreme(&self) -> bool {
        matches!(self, Self::ExtremeFloat { .. })
    }

    /// Takes out the values that were gathered.
    pub(in crate::scan) fn take_floats(&mut self) -> Vec<f64> {
        match self {
            Self::Floats { values, .. } => std::mem::take(values),
            _ => Vec::new(),
        }
    }

    /// Adds values that a thread has gathered to a sum of floats, in their order. (A `real` is a `double precision`
    /// without loss, and back.)
    pub(in crate::scan) fn add_floats(&mut self, more: &[f64]) {
        match self {
            Self::Float4 { sum, any } => {
                more.iter().for_each(|&value| *sum += value as f32);
                *any |= !more.is_empty();
            }
            Self::Float8 { sum, any } => {
                more.iter().for_each(|&value| *sum += value);
                *any |= !more.is_empty();
            }
            _ => {}
        }
    }

    /// Adds what `other`, the same aggregate, took of rows that come behind those of this one.
    pub(in crate::scan) fn merge(&mut self, other: &Self) {
        match (self, other) {
            (Self::Count(count), Self::Count(more)) => *count += more,
            (Self::Int { sum, any, .. }, Self::Int { sum: more, any: some, .. })
            | (Self::Lengths { sum, any }, Self::Lengths { sum: more, any: some }) => {
                *sum += more;
                *any |= some;
            }
            (Self::Numeric { sum, any }, Self::Numeric { sum: more, any: some }) => {
                sum.merge(more);
                *any |= some;
            }
            (Self::ExtremeLength { want_max, best }, Self::ExtremeLength { best: Some(value), .. })
            | (Self::ExtremeInt { want_max, best, .. }, Self::ExtremeInt { best: Some(value), .. }) => {
                *best = Some(best.map_or(*value, |b| if *want_max { b.max(*value) } else { b.min(*value) }));
            }
            (Self::ExtremeFloat { want_max, best, .. }, Self::ExtremeFloat { best: Some(value), .. }) => {
                *best = Some(match *best {
                    Some(b) if is_less(b, *value) != *want_max => b,
                    _ => *value,
                });
            }
            // An extreme over nothing; sums of floats, which are gathered.
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scan::aggregate::parse::parse;

    const TYPES: [(&str, u32); 4] = [("int8", 20), ("int4", 23), ("float8", 701), ("float4", 700)];

    fn bytes(value: f64, type_name: &str) -> Vec<u8> {
        match type_name {
            "int8" => (value as i64).to_le_bytes().to_vec(),
            "int4" => (value as i32).to_le_bytes().to_vec(),
            "float8" => value.to_le_bytes().to_vec(),
            _ => (value as f32).to_le_bytes().to_vec(),
        }
    }

    fn best_bits(accumulator: &Accumulator) -> String {
        match accumulator {
            // -0 and 0 are told apart, NaN equals itself.
            Accumulator::ExtremeFloat { best, .. } => format!("{:?}", best.map(f64::to_bits)),
            Accumulator::Float8 { sum, .. } => format!("{:?}", sum.to_bits()),
            Accumulator::Float4 { sum, .. } => format!("{:?}", sum.to_bits()),
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn parts_put_together_are_the_whole() {
        let values = [0.0, -0.0, 1e16, 3.0, -7.0, f64::NAN, 1.5, -0.0, 0.0, 1e16, -1e16, 2.25, f64::INFINITY];
        for (type_name, oid) in TYPES {
            for call in parse("count(*),count(x),sum(x),min(x),max(x)").unwrap() {
                for upto in 0..=values.len() {
                    let values = &values[..upto];
                    let whole = || Running {
                        accumulator: Accumulator::new(&call, oid, type_name).unwrap(),
                        place: None,
                        expression: None,
                    };
                    let mut serial = whole();
                    for &value in values {
                        serial.accumulator.add_value(&bytes(value, type_name)).unwrap();
                    }
                    for parts in 1..5 {
                        let mut merged = whole();
                        for part in values.chunks(values.len().div_ceil(parts).max(1)) {
                            let mut share = merged.for_thread();
                            share.accumulator = whole().for_thread().accumulator;
                            for &value in part {
                                share.accumulator.add_value(&bytes(value, type_name)).unwrap();
                            }
                            let extreme = share.take_extreme();
                            merged.accumulator.add_floats(&share.accumulator.take_floats());
                            merged.accumulator.merge(&share.accumulator);
                            merged.accumulator.merge(&extreme.accumulator);
                        }
                        let what = format!("{} of {type_name}, {parts} parts of {values:?}", call.text);
                        assert_eq!(best_bits(&merged.accumulator), best_bits(&serial.accumulator), "{what}");
                    }
                }
            }
        }
    }
}
