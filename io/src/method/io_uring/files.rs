//! The ring's own table of open files (registered files).

use crate::{DataFile, Request};
use io_uring::IoUring;
use std::{
    collections::HashMap,
    os::fd::RawFd,
    sync::{Arc, Mutex, PoisonError, Weak},
};

/// Places in a ring's table.
const PLACES: u32 = 256;

/// Which files are in the table. A place is used again only when its file is closed on our side: then no request on it
/// exists, not even one that was queued and not submitted, which would read the wrong file.
#[derive(Default)]
struct Places {
    by_id: HashMap<u64, u32>,
    files: Vec<Option<(u64, Weak<DataFile>)>>,
}

/// `None` inside: files are not registered.
pub(super) struct FileTable(Option<Mutex<Places>>);

impl FileTable {
    /// Makes the table, if wanted and possible; the second value tells users which.
    pub(super) fn new(ring: &IoUring, wanted: bool) -> (Self, String) {
        if !wanted {
            return (Self(None), "plain".to_owned());
        }
        match ring.submitter().register_files_sparse(PLACES) {
            Ok(()) => {
                let places = Places { by_id: HashMap::new(), files: (0..PLACES).map(|_| None).collect() };
                (Self(Some(Mutex::new(places))), format!("registered, {PLACES} places"))
            }
            Err(error) => (Self(None), format!("plain: registering refused: {error}")),
        }
    }

    /// The place of the request's file, if `fd` is its first descriptor and there is room.
    pub(super) fn index(&self, request: &Request, fd: RawFd, ring: &IoUring) -> Option<u32> {
        let table = self.0.as_ref()?;
        let file = &request.file;
        if fd != file.fd() {
            return None;
        }
        let mut places = table.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(&place) = places.by_id.get(&file.id()) {
            return Some(place);
        }
        places.sweep(ring);
        let place = places.files.iter().position(Option::is_none)?;
        let number = u32::try_from(place).ok()?;
        ring.submitter().register_files_update(number, &[fd]).ok()?;
        places.files[place] = Some((file.id(), Arc::downgrade(file)));
        places.by_id.insert(file.id(), number);
        Some(number)
    }
}

impl Places {
    /// Has the kernel close files that are closed on our side.
    fn sweep(&mut self, ring: &IoUring) {
        for (number, place) in (0u32..).zip(&mut self.files) {
            if let Some((id, file)) = place
                && file.strong_count() == 0
                && ring.submitter().register_files_update(number, &[-1]).is_ok()
            {
                self.by_id.remove(id);
                *place = None;
            }
        }
    }
}
