//! Where operands lie, and what sizes there may be: of every op.

use crate::launch::{Launch, Memory, POISON, Ready, Rig, refused};
use crate::ops;
use ep_core::DType;
use ep_registry::{Buffer, Device};

fn memory(ready: &Ready<'_>) -> Vec<Memory> {
    (0..ready.uses.len()).map(|i| Memory::of(&ready.before(i))).collect()
}

fn addresses(memory: &mut [Memory]) -> Vec<u64> {
    memory.iter_mut().map(|m| m.address(0)).collect()
}

#[test]
fn misaligned_and_null_addresses_are_refused() {
    let rig = Rig::new(1);
    let mut refusals = 0;
    for launch in ops::all(3, 4) {
        let ready = rig.ready(&launch);
        let mut memory = memory(&ready);
        let before: Vec<Vec<u8>> = memory.iter().map(|m| m.bytes().to_vec()).collect();
        let good = addresses(&mut memory);
        for (i, u) in ready.uses.iter().enumerate() {
            let alignment = u.dtype.map_or(1, |d| d.alignment() as u64);
            let off_by_one = (alignment > 1).then(|| good[i] + alignment / 2);
            let null = (!u.optional).then_some(0);
            for bad in [off_by_one, null].into_iter().flatten() {
                let mut at = good.clone();
                at[i] = bad;
                refused(ready.launch_at(&rig.stream, &at), &launch, &[ready.name(i), "must not be null"]);
                refusals += 1;
            }
        }
        assert!(memory.iter().zip(&before).all(|(m, b)| m.bytes() == b), "{launch:?}: refused, and written");
        ready.launch_at(&rig.stream, &good).unwrap();
    }
    assert!(refusals > 100, "{refusals}");
}

#[test]
fn any_address_of_an_element_s_alignment_will_do() {
    let rig = Rig::new(1);
    for launch in ops::all(5, 9) {
        let ready = rig.ready(&launch);
        let mut aligned = memory(&ready);
        let at = addresses(&mut aligned);
        ready.launch_at(&rig.stream, &at).unwrap();
        for shift in [1, 2, 3] {
            let step = |i: usize| shift * ready.uses[i].dtype.map_or(1, |d: DType| d.size().unwrap());
            let mut shifted: Vec<Memory> = (0..ready.uses.len())
                .map(|i| Memory::of(&[vec![POISON; step(i)], ready.before(i)].concat()))
                .collect();
            let at: Vec<u64> = shifted.iter_mut().enumerate().map(|(i, m)| m.address(step(i))).collect();
            ready.launch_at(&rig.stream, &at).unwrap();
            for (i, (a, s)) in aligned.iter().zip(&shifted).enumerate() {
                assert_eq!(a.bytes(), &s.bytes()[step(i)..], "{launch:?}: `{}` by {shift}", ready.name(i));
                assert!(s.bytes()[..step(i)].iter().all(|b| *b == POISON), "{launch:?}: `{}`", ready.name(i));
            }
        }
    }
}

/// A launch of each op in which nothing is to be done: one size after the other is 0.
fn of_nothing() -> Vec<Launch> {
    let sizes = |l: &Launch| (0..l.sizes.len()).map(|i| (l.clone(), i)).collect::<Vec<_>>();
    let mut launches = Vec::new();
    for launch in ops::all(3, 4) {
        for (mut empty, i) in sizes(&launch) {
            let spared = match launch.op {
                // Over nothing there is a result, or an error.
                "reduce" | "arg_reduce" => "reduced",
                "matmul" | "batch_matmul" => "k",
                "layer_norm" | "rms_norm" => "cols",
                // 0 means 1.
                "softmax" | "log_softmax" | "softmax_backward" | "log_softmax_backward" => "inner",
                // Every index is outside of an axis without rows.
                "gather" | "batch_gather" | "scatter_add" => "processed",
                "one_hot" => "depth",
                _ => "",
            };
            if empty.sizes[i].0 != spared {
                empty.sizes[i].1 = 0;
                launches.push(empty);
            }
        }
        if !launch.lists.is_empty() {
            launches.extend((0..2).map(|axis| without(&launch, axis)));
        }
    }
    launches
}

/// A launch whose shapes have a 0 in one of their last two dimensions, at offsets behind the end of its operands.
fn without(launch: &Launch, axis: usize) -> Launch {
    let mut empty = launch.clone();
    for (name, values) in &mut empty.lists {
        let shape = name.ends_with("dims") || *name == "extent";
        match (launch.op, *name) {
            ("broadcast_matmul", "a_dims") if axis == 1 => {}
            ("broadcast_matmul", "b_dims") if axis == 0 => {}
            ("broadcast_matmul", _) => {
                let at = values.len() - 2 + axis;
                values[at] = 0;
            }
            // Else there is a border, and something to be written.
            ("constant_pad", "padding_before" | "padding_after") => values.fill(0),
            _ if shape => values[axis] = 0,
            _ => {}
        }
    }
    // Of nothing there is no place to begin at.
    if launch.op == "strided_copy" {
        empty.sizes.extend([("src_offset", 5), ("dst_offset", 5)]);
    }
    empty
}

#[test]
fn nothing_is_done_for_nothing() {
    let rig = Rig::new(1);
    let launches = of_nothing();
    assert!(launches.len() > 50, "{} launches", launches.len());
    for launch in launches {
        let ready = rig.ready(&launch);
        let mut memory = memory(&ready);
        let before: Vec<Vec<u8>> = memory.iter().map(|m| m.bytes().to_vec()).collect();
        let at = addresses(&mut memory);
        ready.launch_at(&rig.stream, &at).unwrap_or_else(|e| panic!("{launch:?}: {e}"));
        let same = memory.iter().zip(&before).all(|(m, b)| m.bytes() == b);
        assert!(same, "{launch:?}: something was written");
    }
}

#[test]
fn operands_without_elements_need_no_memory() {
    let rig = Rig::new(1);
    let mut empty = 0;
    for launch in of_nothing() {
        let ready = rig.ready(&launch);
        let mut memory = memory(&ready);
        for nowhere in [0, 1, u64::MAX] {
            let mut at = addresses(&mut memory);
            for (address, u) in at.iter_mut().zip(&ready.uses).filter(|(_, u)| u.bytes == 0) {
                *address = nowhere;
                empty += usize::from(u.present);
            }
            ready.launch_at(&rig.stream, &at).unwrap_or_else(|e| panic!("{launch:?} at {nowhere:#x}: {e}"));
        }
    }
    assert!(empty > 200, "{empty}");
}

/// A list of sources is not even looked at where they have no elements.
#[test]
fn a_list_of_empty_sources_may_be_null() {
    use ep_core::primitive::{Add, AddArgs, AddDesc};
    use ep_registry::Runtime;
    use ep_registry::config::ProviderConfig;
    let settings = ProviderConfig::new("cpu", "");
    let runtime =
        Runtime::builder().threads(1).linked_with::<ep_cpu::provider::CpuProvider>(settings).build().unwrap();
    let device = &runtime.devices()[0];
    let add = runtime.primitive::<Add>(device, AddDesc::new(DType::F32)).unwrap();
    let mut args = AddArgs::new(0, 0, &[]);
    args.arity = 3;
    args.srcs = std::ptr::null();
    // SAFETY: there are no elements.
    unsafe { add.launch_raw(&device.stream().unwrap(), &args) }.unwrap();
}

/// Memory of the tests as a buffer.
///
/// # Safety
/// It is live and not used otherwise until the buffer is dropped.
unsafe fn import(device: &Device, address: u64, bytes: u64, dtype: Option<DType>) -> Buffer {
    // SAFETY: as the caller promises.
    unsafe { Buffer::import(device, "host", address, bytes, dtype.unwrap_or(DType::U8), || {}) }.unwrap()
}

/// Launches with operand `i` at `offset` bytes from the start of operand `w`, and the others apart.
fn with_overlap(rig: &Rig, ready: &Ready<'_>, w: usize, i: usize, offset: u64) -> ep_core::Result<()> {
    let mut memory = memory(ready);
    let mut at = addresses(&mut memory);
    let mut both = Memory::of(&vec![0; (ready.uses[w].bytes + offset + ready.uses[i].bytes) as usize]);
    at[w] = both.address(0);
    at[i] = both.address(offset as usize);
    let device = rig.device();
    let mut buffers: Vec<Buffer> = at
        .iter()
        .zip(&ready.uses)
        // SAFETY: each lies in the memory above, which outlives them; the launch refuses what overlaps, or allows it.
        .map(|(a, u)| unsafe { import(device, *a, u.bytes, u.dtype) })
        .collect();
    ready.launch_safely(&rig.stream, &mut buffers)
}

#[test]
fn overlaps_with_an_output_are_refused() {
    let rig = Rig::new(1);
    let mut refusals = 0;
    for launch in ops::all(3, 4) {
        let ready = rig.ready(&launch);
        for (w, u) in ready.uses.iter().enumerate().filter(|(_, u)| u.writes) {
            for (i, other) in ready.uses.iter().enumerate().filter(|(i, _)| *i != w) {
                // By one element, at the end of the output.
                let step =
                    [u, other].map(|u| u.dtype.map_or(1, |d| d.size().unwrap())).into_iter().max().unwrap()
                        as u64;
                let offset = (u.bytes - 1) / step * step;
                let e = with_overlap(&rig, &ready, w, i, offset);
                refused(e, &launch, &["overlaps", "the op does not allow"]);
                refusals += 1;
                let same = with_overlap(&rig, &ready, w, i, 0);
                if may_share(&ready, w, i) && u.bytes == other.bytes {
                    same.unwrap_or_else(|e| panic!("{launch:?}: `{}` in place: {e}", ready.name(i)));
                } else {
                    refused(same, &launch, &["overlaps"]);
                }
            }
        }
    }
    assert!(refusals > 50, "{refusals}");
}

/// Whether the op's table lets an output be where another operand is.
fn may_share(ready: &Ready<'_>, w: usize, i: usize) -> bool {
    let schema = ready.primitive.schema();
    let (w, i) = (schema.operand_of(w), schema.operand_of(i));
    schema.operands[w].in_place >> i & 1 != 0 || schema.operands[i].in_place >> w & 1 != 0
}

#[test]
fn in_place_gives_the_same_bits() {
    let rig = Rig::new(2);
    let mut shared = 0;
    for launch in ops::all(7, 33).into_iter().chain(ops::all(40, 130)) {
        let ready = rig.ready(&launch);
        let outputs = (0..ready.uses.len()).filter(|w| ready.uses[*w].writes);
        let pairs: Vec<_> = outputs.flat_map(|w| (0..ready.uses.len()).map(move |i| (w, i))).collect();
        for (w, i) in pairs.into_iter().filter(|(w, i)| w != i && may_share(&ready, *w, *i)) {
            if ready.uses[w].bytes != ready.uses[i].bytes {
                continue;
            }
            let mut apart = memory(&ready);
            let at = addresses(&mut apart);
            ready.launch_at(&rig.stream, &at).unwrap();
            let mut together = memory(&ready);
            let mut at = addresses(&mut together);
            at[w] = at[i];
            ready.launch_at(&rig.stream, &at).unwrap();
            let same = apart[w].bytes() == together[i].bytes();
            assert!(same, "{}: in place of `{}`, other bits", launch.op, ready.name(i));
            shared += 1;
        }
    }
    assert!(shared >= 2 * 19, "{shared}");
}

#[test]
fn sources_may_be_the_same_memory() {
    let rig = Rig::new(1);
    let mut tried = 0;
    for launch in ops::all(3, 4) {
        let ready = rig.ready(&launch);
        let sources: Vec<usize> =
            (0..ready.uses.len()).filter(|i| ready.uses[*i].reads && !ready.uses[*i].writes).collect();
        for (a, b) in
            sources.iter().flat_map(|a| sources.iter().map(move |b| (*a, *b))).filter(|(a, b)| a < b)
        {
            let mut own = memory(&ready);
            let len = ready.uses[a].bytes.max(ready.uses[b].bytes) as usize;
            // Valid for both, also as indices.
            let mut both = Memory::of(&vec![0; len]);
            for i in [a, b] {
                own[i] = Memory::of(&vec![0; ready.uses[i].bytes as usize]);
            }
            let at = addresses(&mut own);
            ready.launch_at(&rig.stream, &at).unwrap();
            let wanted: Vec<Vec<u8>> = own.iter().map(|m| m.bytes().to_vec()).collect();
            let mut again = memory(&ready);
            let mut at = addresses(&mut again);
            (at[a], at[b]) = (both.address(0), both.address(0));
            ready.launch_at(&rig.stream, &at).unwrap();
            for (i, _) in ready.uses.iter().enumerate().filter(|(_, u)| u.writes) {
                assert_eq!(again[i].bytes(), wanted[i], "{launch:?}: `{}`", ready.name(i));
            }
            tried += 1;
        }
    }
    assert!(tried > 15, "{tried}");
}

/// Large enough for several tasks of each op.
#[test]
fn threads_do_not_change_the_bits() {
    let (one, three) = (Rig::new(1), Rig::new(3));
    for launch in ops::all(130, 520) {
        let outputs = |rig: &Rig| rig.run(&launch).unwrap_or_else(|e| panic!("{launch:?}: {e}"));
        let (a, b) = (outputs(&one), outputs(&three));
        let ready = one.ready(&launch);
        for i in (0..ready.uses.len()).filter(|i| ready.uses[*i].writes) {
            assert!(a.data(ready.name(i)) == b.data(ready.name(i)), "{}: other bits on 3 threads", launch.op);
        }
    }
}

#[test]
fn negative_sizes_are_refused() {
    let rig = Rig::new(1);
    for launch in ops::all(3, 4) {
        let primitive = rig.primitive(&launch);
        let none = vec![0; launch.arity];
        let check = |bad: &Launch, name: &str| {
            let args = crate::launch::arguments(&primitive, bad, &none);
            refused(primitive.uses(&args).map(drop), bad, &[name, "must not be negative"]);
        };
        for i in 0..launch.sizes.len() {
            let mut bad = launch.clone();
            bad.sizes[i].1 = -1;
            check(&bad, bad.sizes[i].0);
        }
        for i in (0..launch.lists.len()).filter(|i| launch.lists[*i].0.ends_with("dims")) {
            let mut bad = launch.clone();
            *bad.lists[i].1.last_mut().unwrap() = i64::MIN;
            check(&bad, bad.lists[i].0);
        }
    }
}

/// A launch with buffers, which hold what a small launch needs.
#[test]
fn sizes_that_no_memory_holds_are_refused() {
    let rig = Rig::new(1);
    for launch in ops::all(3, 4) {
        let small = rig.ready(&launch);
        let grown = (0..launch.sizes.len()).map(|i| {
            let mut big = launch.clone();
            big.sizes[i].1 = i64::MAX;
            big
        });
        let lists = launch.lists.iter().enumerate().filter(|(_, (name, _))| name.ends_with("dims"));
        let grown_lists = lists.map(|(i, _)| {
            let mut big = launch.clone();
            big.lists[i].1.fill(i64::MAX / 2);
            big
        });
        for big in grown.chain(grown_lists) {
            let mut memory = memory(&small);
            let at = addresses(&mut memory);
            let mut buffers: Vec<Buffer> = at
                .iter()
                .zip(&small.uses)
                // SAFETY: each lies in the memory above, which outlives it.
                .map(|(a, u)| unsafe { import(rig.device(), *a, u.bytes, u.dtype) })
                .collect();
            let big_uses =
                Ready { launch: &big, primitive: small.primitive.clone(), uses: small.uses.clone() };
            refused(big_uses.launch_safely(&rig.stream, &mut buffers), &big, &[]);
        }
    }
}
