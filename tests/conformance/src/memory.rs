//! Memory for the operands of a launch that shows where a kernel leaves them.
//!
//! Any device: memory of its own, with a pattern around each operand that is looked at afterwards. A device that
//! computes on host memory: memory between inaccessible pages, so that a kernel which leaves its operands, even with a
//! streaming store or a tile instruction that sanitizers do not see, faults.

use ep_core::{DType, Result};
use ep_registry::{Buffer, Device};
use std::collections::HashMap;
use std::io;

/// Which end of an operand lies at an inaccessible page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edge {
    /// Its last byte is the last accessible one.
    End,
    /// Its first byte is the first accessible one.
    Start,
    /// It starts this many bytes behind the first accessible one.
    After(usize),
}

/// Bytes on either side of an operand that must not change.
const SLACK: usize = 512;
const PATTERN: u8 = 0xa7;

/// Where the pattern before and behind an operand of `bytes` bytes is first broken, from the operand's start on: negative
/// before it, at least `bytes` behind it. `None` where it is whole.
fn changed(before: &[u8], bytes: usize, behind: &[u8]) -> Option<isize> {
    let broken = |part: &[u8]| part.iter().position(|b| *b != PATTERN).map(usize::cast_signed);
    let first = broken(before).map(|at| at - before.len().cast_signed());
    first.or_else(|| broken(behind).map(|at| at + bytes.cast_signed()))
}

/// Where operands lie.
pub(crate) trait Memory {
    /// Writes the content of operand `index`, `shift` bytes behind an aligned address where the memory leaves the
    /// choice, and a pattern around it. Returns its address.
    fn put(&mut self, index: usize, content: &[u8], shift: usize, element: usize) -> Result<u64>;

    /// The content of operand `index`, and as [`changed`] what is left of the pattern around it.
    fn get(
        &mut self,
        index: usize,
        bytes: usize,
        shift: usize,
        element: usize,
    ) -> Result<(Vec<u8>, Option<isize>)>;
}

/// An arena with all operands at one edge.
pub(crate) struct Edged<'a> {
    pub(crate) arena: &'a mut Arena,
    pub(crate) edge: Edge,
}

impl Edged<'_> {
    /// The first element stays aligned.
    fn edge(&self, shift: usize, element: usize) -> Edge {
        match self.edge {
            Edge::After(elements) => Edge::After(elements * element),
            Edge::Start if shift != 0 => Edge::After(shift),
            other => other,
        }
    }
}

impl Memory for Edged<'_> {
    fn put(&mut self, index: usize, content: &[u8], shift: usize, element: usize) -> Result<u64> {
        let edge = self.edge(shift, element);
        Ok(self.arena.put(index, content, edge))
    }

    fn get(
        &mut self,
        index: usize,
        bytes: usize,
        shift: usize,
        element: usize,
    ) -> Result<(Vec<u8>, Option<isize>)> {
        let edge = self.edge(shift, element);
        let (content, changed) = self.arena.get(index, bytes, edge);
        Ok((content.to_vec(), changed))
    }
}

/// Memory of a device, reached by copies only.
pub(crate) struct DeviceMemory {
    device: Device,
    /// By operand and size, so that a small operand is not copied with the memory of a large one.
    buffers: HashMap<(usize, usize), Buffer>,
}

impl DeviceMemory {
    pub(crate) fn new(device: &Device) -> DeviceMemory {
        DeviceMemory { device: device.clone(), buffers: HashMap::new() }
    }

    /// The size of the buffer that holds an operand with both patterns.
    fn class(bytes: usize, shift: usize) -> usize {
        (2 * SLACK + bytes + shift).next_power_of_two().max(2048)
    }
}

impl Memory for DeviceMemory {
    fn put(&mut self, index: usize, content: &[u8], shift: usize, _: usize) -> Result<u64> {
        let class = DeviceMemory::class(content.len(), shift);
        let mut image = vec![PATTERN; class];
        let at = SLACK + shift;
        image[at..at + content.len()].copy_from_slice(content);
        let buffer = match self.buffers.entry((index, class)) {
            std::collections::hash_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::hash_map::Entry::Vacant(entry) => {
                entry.insert(self.device.alloc(DType::U8, class)?)
            }
        };
        buffer.upload(&image)?;
        Ok(buffer.address() + at as u64)
    }

    fn get(
        &mut self,
        index: usize,
        bytes: usize,
        shift: usize,
        _: usize,
    ) -> Result<(Vec<u8>, Option<isize>)> {
        let at = SLACK + shift;
        let buffer = &self.buffers[&(index, DeviceMemory::class(bytes, shift))];
        let image = buffer.download::<u8>()?;
        let changed = changed(&image[..at], bytes, &image[at + bytes..]);
        Ok((image[at..at + bytes].to_vec(), changed))
    }
}

struct Region {
    base: *mut u8,
    bytes: usize,
}

/// Regions for the operands of a launch, each between inaccessible pages.
pub struct Arena {
    regions: Vec<Region>,
    page: usize,
}

impl Arena {
    /// `count` regions for operands of up to `bytes` each.
    ///
    /// # Errors
    /// When the system refuses the memory.
    pub fn new(count: usize, bytes: usize) -> io::Result<Arena> {
        // SAFETY: asks for a constant.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        let bytes = bytes.next_multiple_of(page) + page;
        let mut arena = Arena { regions: Vec::new(), page };
        for _ in 0..count {
            let whole = bytes + 2 * page;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            // SAFETY: a new mapping at an address of the system's choice.
            let base = unsafe { libc::mmap(std::ptr::null_mut(), whole, libc::PROT_NONE, flags, -1, 0) };
            if base == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            let base = base.cast::<u8>();
            arena.regions.push(Region { base, bytes });
            // SAFETY: inside of the mapping just made.
            let result =
                unsafe { libc::mprotect(base.add(page).cast(), bytes, libc::PROT_READ | libc::PROT_WRITE) };
            if result != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(arena)
    }

    /// The most bytes that an operand can have.
    pub fn capacity(&self) -> usize {
        self.regions.first().map_or(0, |r| r.bytes - self.page)
    }

    /// Where operand `index` of `bytes` bytes lies, as an offset into its region's accessible part.
    fn place(&self, index: usize, bytes: usize, edge: Edge) -> usize {
        let region = &self.regions[index];
        match edge {
            Edge::End => region.bytes - bytes,
            Edge::Start => 0,
            Edge::After(skip) => skip,
        }
    }

    fn accessible(&mut self, index: usize) -> &mut [u8] {
        let region = &self.regions[index];
        // SAFETY: accessible memory of this arena, which the exclusive borrow keeps to one user; launches have
        // ended when the arena is used again.
        unsafe { std::slice::from_raw_parts_mut(region.base.add(self.page), region.bytes) }
    }

    /// Writes the content of an operand, and a pattern around it. Returns its address.
    pub fn put(&mut self, index: usize, content: &[u8], edge: Edge) -> u64 {
        let at = self.place(index, content.len(), edge);
        let region = self.accessible(index);
        let (before, rest) = region.split_at_mut(at);
        let (own, behind) = rest.split_at_mut(content.len());
        let near = before.len().saturating_sub(SLACK);
        before[near..].fill(PATTERN);
        own.copy_from_slice(content);
        let near = behind.len().min(SLACK);
        behind[..near].fill(PATTERN);
        own.as_mut_ptr().expose_provenance() as u64
    }

    /// The content of an operand; and where the pattern around it is first broken, from the operand's start on, `None`
    /// where it is whole.
    pub fn get(&mut self, index: usize, bytes: usize, edge: Edge) -> (&[u8], Option<isize>) {
        let at = self.place(index, bytes, edge);
        let region = self.accessible(index);
        let (before, rest) = region.split_at(at);
        let (own, behind) = rest.split_at(bytes);
        let before = &before[before.len().saturating_sub(SLACK)..];
        let behind = &behind[..behind.len().min(SLACK)];
        (own, changed(before, bytes, behind))
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        for r in &self.regions {
            // SAFETY: unmaps what `new` has mapped; nothing refers to it any more.
            unsafe { libc::munmap(r.base.cast(), r.bytes + 2 * self.page) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_and_pattern() {
        let mut arena = Arena::new(2, 5000).unwrap();
        assert!(arena.capacity() >= 5000);
        for edge in [Edge::End, Edge::Start, Edge::After(24)] {
            let address = arena.put(1, &[1, 2, 3], edge);
            assert_eq!(arena.get(1, 3, edge), (&[1, 2, 3][..], None));
            let byte = std::ptr::with_exposed_provenance_mut::<u8>(address as usize);
            let at = match edge {
                Edge::Start => 3,
                _ => -2,
            };
            // SAFETY: accessible memory of the arena.
            unsafe { byte.offset(at).write(0) };
            assert_eq!(arena.get(1, 3, edge), (&[1, 2, 3][..], Some(at)));
        }
        let page = arena.page;
        let end = arena.put(0, &[0; 16], Edge::End) as usize + 16;
        assert_eq!(end % page, 0);
        assert_eq!(arena.put(0, &[0; 16], Edge::Start) as usize % page, 0);
    }
}
