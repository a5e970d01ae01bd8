//! Captures: what streams record together, and in which order.

use crate::world::*;
use std::collections::BTreeMap;

pub(crate) const CAPTURE_UNSUPPORTED: i32 = 900;
pub(crate) const CAPTURE_INVALIDATED: i32 = 901;
const CAPTURE_MERGE: i32 = 902;
const CAPTURE_UNMATCHED: i32 = 903;
const CAPTURE_UNJOINED: i32 = 904;
const CAPTURE_ISOLATION: i32 = 905;
const CAPTURED_EVENT: i32 = 907;

/// For each stream of a recording how much of its work comes before.
type Order = BTreeMap<u64, u64>;

/// What is being recorded.
pub(crate) struct Recording {
    /// The stream that began it.
    origin: u64,
    work: Vec<Work>,
    spoilt: bool,
}

/// A point of a recording: what a stream records next comes behind it, or an event stands for it.
#[derive(Clone)]
pub(crate) struct Point {
    pub(crate) recording: u64,
    before: Order,
}

impl World {
    /// Whether a stream records: 0 no, 1 yes, 2 what is spoilt.
    pub(crate) fn capture_status(&mut self, stream: u64) -> Outcome<i32> {
        let Some(point) = &self.stream(stream)?.capture else { return Ok(0) };
        let recording = point.recording;
        Ok(1 + i32::from(self.recordings.get(&recording).is_some_and(|r| r.spoilt)))
    }

    fn spoil(&mut self, recording: u64) {
        if let Some(recording) = self.recordings.get_mut(&recording) {
            recording.spoilt = true;
        }
    }

    /// Waiting and asking are no parts of a graph.
    pub(crate) fn not_capturing(&mut self, stream: u64) -> Outcome {
        match self.stream(stream)?.capture.as_ref().map(|p| p.recording) {
            Some(recording) => {
                self.spoil(recording);
                Err(CAPTURE_UNSUPPORTED)
            }
            None => Ok(()),
        }
    }

    /// An event that stands for a point of a recording can neither be awaited by the host nor asked.
    pub(crate) fn not_captured(&mut self, event: u64) -> Outcome {
        match self.event(event)?.captured.as_ref().map(|p| p.recording) {
            Some(recording) => {
                self.spoil(recording);
                Err(CAPTURED_EVENT)
            }
            None => Ok(()),
        }
    }

    pub(crate) fn begin_capture(&mut self, handle: u64) -> Outcome {
        if handle == 0 {
            return Err(CAPTURE_UNSUPPORTED);
        }
        let recording = self.handle();
        let stream = self.stream(handle)?;
        if stream.capture.is_some() {
            return Err(ILLEGAL_STATE);
        }
        stream.capture = Some(Point { recording, before: Order::new() });
        self.recordings.insert(recording, Recording { origin: handle, work: Vec::new(), spoilt: false });
        Ok(())
    }

    /// Records work where the stream does that; gives it back where it does not.
    pub(crate) fn record(&mut self, handle: u64, work: Work) -> Outcome<Option<Work>> {
        let Some(point) = &mut self.stream(handle)?.capture else { return Ok(Some(work)) };
        *point.before.entry(handle).or_default() += 1;
        let id = point.recording;
        let recording = self.recordings.get_mut(&id).filter(|r| !r.spoilt).ok_or(CAPTURE_INVALIDATED)?;
        recording.work.push(work);
        Ok(None)
    }

    /// Orders what a stream does next behind an event, where one of both belongs to a recording; whether it did.
    pub(crate) fn wait_captured(&mut self, handle: u64, event: u64) -> Outcome<bool> {
        let own = self.stream(handle)?.capture.clone();
        let state = self.event(event)?;
        let recorded = state.recorded > 0;
        match (own, state.captured.clone()) {
            (None, None) => Ok(false),
            // An event that was never recorded is no dependency.
            (Some(_), None) if !recorded => Ok(true),
            (Some(own), None) => {
                self.spoil(own.recording);
                Err(CAPTURE_ISOLATION)
            }
            (_, Some(there)) if !self.recordings.contains_key(&there.recording) => Err(CAPTURED_EVENT),
            // The stream joins.
            (None, Some(there)) => {
                self.stream(handle)?.capture = Some(there);
                Ok(true)
            }
            (Some(mut own), Some(there)) if own.recording == there.recording => {
                for (stream, count) in there.before {
                    let known = own.before.entry(stream).or_default();
                    *known = count.max(*known);
                }
                self.stream(handle)?.capture = Some(own);
                Ok(true)
            }
            (Some(own), Some(there)) => {
                self.spoil(own.recording);
                self.spoil(there.recording);
                Err(CAPTURE_MERGE)
            }
        }
    }

    /// What was recorded, where all streams that have joined have come back.
    pub(crate) fn end_capture(&mut self, handle: u64) -> Outcome<Vec<Work>> {
        let Point { recording: id, before } = self.stream(handle)?.capture.clone().ok_or(ILLEGAL_STATE)?;
        if self.recordings.get(&id).is_some_and(|r| r.origin != handle) {
            self.spoil(id);
            return Err(CAPTURE_UNMATCHED);
        }
        let recording = self.recordings.remove(&id).ok_or(ILLEGAL_STATE)?;
        let mut joined = true;
        for (key, stream) in &mut self.streams {
            if let Some(point) = stream.capture.take_if(|p| p.recording == id) {
                joined &= point.before.get(key).is_none_or(|own| before.get(key) >= Some(own));
            }
        }
        match (recording.spoilt, joined) {
            (true, _) => Err(CAPTURE_INVALIDATED),
            (false, false) => Err(CAPTURE_UNJOINED),
            (false, true) => Ok(recording.work),
        }
    }

    /// A stream ends: what it began to record is of no use to those that have joined.
    pub(crate) fn forget_capture(&mut self, handle: u64) {
        let began: Vec<u64> =
            self.recordings.iter().filter(|(_, r)| r.origin == handle).map(|(id, _)| *id).collect();
        for id in began {
            self.recordings.remove(&id);
            self.streams.values_mut().for_each(|s| drop(s.capture.take_if(|p| p.recording == id)));
        }
    }
}
