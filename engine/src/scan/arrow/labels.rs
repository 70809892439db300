//! Labels of enums: the dictionary of a column.

use crate::{Error, ErrorKind, Result, schema::TypeCatalog};
use arrow_array::{ArrayRef, StringArray};
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// The labels that were met, in the order in which they were: a batch's dictionary begins with that of the batch before,
/// and is the same array when no label is new.
pub(super) struct Labels {
    types: Arc<TypeCatalog>,
    keys: FxHashMap<u32, i32>,
    labels: Vec<u32>,
    array: Option<ArrayRef>,
}

impl Labels {
    pub(super) fn new(types: &Arc<TypeCatalog>) -> Self {
        Self { types: Arc::clone(types), keys: FxHashMap::default(), labels: Vec::new(), array: None }
    }

    /// The key of a label.
    #[inline(always)]
    pub(super) fn key(&mut self, oid: u32) -> Result<i32> {
        match self.keys.get(&oid) {
            Some(key) => Ok(*key),
            None => self.add(oid),
        }
    }

    #[cold]
    fn add(&mut self, oid: u32) -> Result<i32> {
        let label =
            self.types.enum_labels.get(&oid).ok_or_else(|| {
                Error::new(ErrorKind::Value, format!("the enum label with oid {oid} is not in pg_enum"))
            })?;
        // Where the catalog's name was no UTF-8.
        if label.contains(char::REPLACEMENT_CHARACTER) {
            return Err(Error::new(ErrorKind::Value, format!("the enum label {label:?} is not UTF-8 in pg_enum"))
                .with_hint("leave the column out")
                .into_refusal());
        }
        let key = i32::try_from(self.labels.len())
            .map_err(|_| Error::new(ErrorKind::Limit, "more enum labels than a dictionary can have"))?;
        self.labels.push(oid);
        self.keys.insert(oid, key);
        self.array = None;
        Ok(key)
    }

    /// The dictionary.
    pub(super) fn array(&mut self) -> ArrayRef {
        let Self { types, labels, array, .. } = self;
        let make = || {
            let labels = labels.iter().map(|oid| types.enum_labels.get(oid).map(String::as_str));
            Arc::new(StringArray::from_iter(labels)) as ArrayRef
        };
        Arc::clone(array.get_or_insert_with(make))
    }
}
