//! Nodes of graphs, as far as they are asked for: what a recorded kernel is, and launching it by that.

use crate::driver::{Needs, call};
use crate::world::*;

/// A node of a graph.
pub(crate) struct Node {
    graph: u64,
    work: Work,
    /// What its parameters point to.
    arguments: Box<Arguments>,
}

impl Node {
    /// Whether it is one of a graph.
    pub(crate) fn is_of(&self, graph: u64) -> bool {
        self.graph == graph
    }
}

/// A kernel's only argument, and the list that names it.
struct Arguments {
    list: [*const u8; 1],
    bytes: Vec<u8>,
}

/// `CUDA_KERNEL_NODE_PARAMS_v2`
#[repr(C)]
pub(crate) struct Params {
    function: u64,
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    params: *const *const u8,
    extra: *const usize,
    kernel: u64,
    context: u64,
}

/// The `CUkernel` that products are launched with. Its argument is the handle of the node that has the product.
const PRODUCT: u64 = 0x77;
const PRODUCT_SHAPE: [[u32; 3]; 2] = [[2, 1, 1], [128, 1, 1]];
/// Its clusters, and how they are spread, which each launch has to say.
const PRODUCT_ATTRIBUTES: [(i32, [u32; 4]); 2] = [(4, [2, 1, 1, 0]), (5, [1, 0, 0, 0])];

pub(crate) extern "C" fn graph_nodes(graph: u64, out: *mut u64, count: *mut usize) -> i32 {
    call("cuGraphGetNodes", format_args!("{graph:#x}"), Needs::Driver, |w| {
        let works = w.graphs.get(&graph).ok_or(INVALID_HANDLE)?.clone();
        if count.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: not null; a count, as the driver's contract says.
        let room = if out.is_null() { usize::MAX } else { unsafe { *count } };
        let given = works.len().min(room);
        for (i, work) in works.into_iter().take(given).enumerate().take_while(|_| !out.is_null()) {
            let handle = w.handle();
            let bytes = match &work {
                Work::Kernel { argument, .. } => argument.clone(),
                _ => handle.to_ne_bytes().to_vec(),
            };
            let mut arguments = Box::new(Arguments { list: [std::ptr::null()], bytes });
            arguments.list = [arguments.bytes.as_ptr()];
            w.nodes.insert(handle, Node { graph, work, arguments });
            // SAFETY: inside the room that the caller says there is.
            unsafe { out.add(i).write(handle) };
        }
        // SAFETY: as above.
        unsafe { count.write(given) };
        Ok(())
    })
}

fn node(w: &World, handle: u64) -> Outcome<&Node> {
    w.nodes.get(&handle).ok_or(INVALID_HANDLE)
}

pub(crate) extern "C" fn node_kind(handle: u64, out: *mut i32) -> i32 {
    call("cuGraphNodeGetType", format_args!("{handle:#x}"), Needs::Driver, |w| {
        let kind = match node(w, handle)?.work {
            Work::Kernel { .. } | Work::Product(_) => 0,
            Work::Copy { .. } => 1,
            Work::Set { .. } => 2,
            _ => 5,
        };
        // SAFETY: an out-pointer, as the driver's contract says.
        unsafe { out.write(kind) };
        Ok(())
    })
}

pub(crate) extern "C" fn node_params(handle: u64, out: *mut Params) -> i32 {
    call("cuGraphKernelNodeGetParams", format_args!("{handle:#x}"), Needs::Driver, |w| {
        let context = w.current()?;
        let node = node(w, handle)?;
        let (function, kernel, grid, block) = match &node.work {
            Work::Kernel { function, grid, block, .. } => (*function, 0, *grid, *block),
            Work::Product(_) => (0, PRODUCT, PRODUCT_SHAPE[0], PRODUCT_SHAPE[1]),
            _ => return Err(INVALID_VALUE),
        };
        let (params, extra) = (node.arguments.list.as_ptr(), std::ptr::null());
        // SAFETY: an out-pointer, as the driver's contract says.
        unsafe { out.write(Params { function, grid, block, shared: 0, params, extra, kernel, context }) };
        Ok(())
    })
}

pub(crate) extern "C" fn node_attribute(handle: u64, attribute: i32, out: *mut [u64; 8]) -> i32 {
    call("cuGraphKernelNodeGetAttribute", format_args!("{handle:#x}, {attribute}"), Needs::Driver, |w| {
        let product = matches!(node(w, handle)?.work, Work::Product(_));
        let of_product = PRODUCT_ATTRIBUTES.iter().find(|(id, _)| product && *id == attribute);
        let value = match (attribute, of_product) {
            (_, Some((_, value))) => *value,
            // How clusters are spread, which there are not.
            (5, None) => [1, 0, 0, 0],
            (1 | 2 | 4 | 8 | 9 | 10, None) => [0; 4],
            _ => return Err(INVALID_VALUE),
        };
        let words = [0, 2].map(|i| u64::from(value[i]) | u64::from(value[i + 1]) << 32);
        // SAFETY: an out-pointer to a value, as the driver's contract says.
        unsafe { out.write([words[0], words[1], 0, 0, 0, 0, 0, 0]) };
        Ok(())
    })
}

/// The product that a launch is for, where it is one. `attributes` are those of the launch, with the first words of their
/// values.
///
/// # Safety
/// For [`PRODUCT`], `params` is a list of one argument of 8 bytes, or null.
pub(crate) unsafe fn product(
    w: &World,
    function: u64,
    shape: [[u32; 3]; 2],
    attributes: &[(i32, [u32; 4])],
    params: *const *const u8,
) -> Outcome<Option<Work>> {
    if function != PRODUCT {
        return Ok(None);
    }
    if params.is_null() || shape != PRODUCT_SHAPE || attributes != PRODUCT_ATTRIBUTES {
        return Err(INVALID_VALUE);
    }
    // SAFETY: as the caller promises. Where the graph is gone it is memory that was freed, which the sanitizer tells.
    let handle = unsafe { (*params).cast::<u64>().read_unaligned() };
    node(w, handle).map(|node| Some(node.work.clone()))
}
