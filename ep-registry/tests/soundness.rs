//! Safe host code against a device that does its work as late as it may, and whose events fail on request.

mod late;

use ep_core::primitive::{Add, AddCall, AddDesc, Permute, PermuteCall, PermuteDesc};
use ep_core::{Code, DType};
use ep_registry::{Buffer, Read, Runtime, Stream};
use late::{QUEUES, SPACE, late, late_of_two, no_violations};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// A source of a launch, and what the caller's code does when its turn comes.
#[derive(Clone, Copy)]
struct Source<'a>(&'a Buffer, &'a dyn Fn());

impl<'a> From<Source<'a>> for Read<'a> {
    fn from(source: Source<'a>) -> Read<'a> {
        source.1();
        source.0.into()
    }
}

#[test]
fn a_dropped_buffer_waits_for_every_stream_even_if_they_cannot_be_ordered() {
    let (runtime, sim) = late();
    let device = runtime.device("late").unwrap();
    let src = device.upload(&[1.5f32, -2.0, f32::INFINITY]).unwrap();
    let (a, b) = (device.stream().unwrap(), device.stream().unwrap());
    let (mut x, mut y) = (device.alloc(DType::F32, 3).unwrap(), device.alloc(DType::F32, 3).unwrap());
    a.copy(&src, &mut x).unwrap();
    b.copy(&src, &mut y).unwrap();
    sim.fail_next_event.store(true, Ordering::Relaxed);
    drop(src);
    // Either stream may have taken the memory; ending one must not free what the other reads.
    b.sync().unwrap();
    a.sync().unwrap();
    no_violations(&sim);
    assert_eq!(x.download::<f32>().unwrap(), [1.5, -2.0, f32::INFINITY]);
    assert_eq!(y.download::<f32>().unwrap(), [1.5, -2.0, f32::INFINITY]);
}

#[test]
fn a_query_that_fails_frees_nothing() {
    let (runtime, sim) = late();
    let device = runtime.device("late").unwrap();
    let freed = Arc::new(AtomicBool::new(false));
    let mut data = vec![7i32, -8];
    let (address, seen) = (data.as_mut_ptr().expose_provenance() as u64, freed.clone());
    let deleter = move || {
        seen.store(true, Ordering::Relaxed);
        drop(data);
    };
    // SAFETY: the deleter owns the vector, which nobody else touches.
    let src = unsafe { Buffer::import(device, SPACE, address, 8, DType::I32, deleter) }.unwrap();
    let stream = device.stream().unwrap();
    let mut dst = device.alloc(DType::I32, 2).unwrap();
    stream.copy(&src, &mut dst).unwrap();
    drop(src);
    sim.fail_queries.store(true, Ordering::Relaxed);
    let mut other = device.alloc(DType::I32, 1).unwrap();
    stream.upload(&mut other, vec![3i32]).unwrap();
    assert!(!freed.load(Ordering::Relaxed), "the copy has not run yet");
    stream.sync().unwrap();
    assert!(freed.load(Ordering::Relaxed));
    assert_eq!(dst.download::<i32>().unwrap(), [7, -8]);
    no_violations(&sim);
}

/// Calls the function for each message.
struct Asks<F>(F);

impl<F: Fn() + Send + Sync + 'static> tracing::Subscriber for Asks<F> {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, _: &tracing::Event<'_>) {
        self.0();
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn whoever_receives_messages_may_use_the_stream() {
    let (runtime, sim) = late();
    let device = runtime.device("late").unwrap();
    let stream = device.stream().unwrap();
    let src = device.upload(&[7i32]).unwrap();
    let (mut dst, mut other) = (device.alloc(DType::I32, 1).unwrap(), device.alloc(DType::I32, 1).unwrap());
    stream.copy(&src, &mut dst).unwrap();
    drop(src);
    sim.fail_queries.store(true, Ordering::Relaxed);
    let asked = Arc::new(AtomicBool::new(false));
    let (mine, seen) = (stream.clone(), asked.clone());
    let subscriber = Asks(move || {
        mine.sync().unwrap();
        seen.store(true, Ordering::Relaxed);
    });
    tracing::subscriber::with_default(subscriber, || stream.upload(&mut other, vec![3i32]).unwrap());
    assert!(asked.load(Ordering::Relaxed), "a query that fails is told");
    assert_eq!(other.download::<i32>().unwrap(), [3]);
    no_violations(&sim);
}

/// What `ask` returns for each message that comes while `work` runs.
fn told<T: Send + 'static, R>(
    ask: impl Fn() -> T + Send + Sync + 'static,
    work: impl FnOnce() -> R,
) -> (R, Vec<T>) {
    let answers = Arc::new(Mutex::new(Vec::new()));
    let told = answers.clone();
    let subscriber = Asks(move || {
        let answer = ask();
        told.lock().unwrap().push(answer);
    });
    let result = tracing::subscriber::with_default(subscriber, work);
    let answers = std::mem::take(&mut *answers.lock().unwrap());
    (result, answers)
}

#[test]
fn whoever_receives_messages_of_a_provider_is_refused_the_stream() {
    let (runtime, sim) = late();
    let device = runtime.device("late").unwrap();
    let stream = device.stream().unwrap();
    let src = device.upload(&[7i32]).unwrap();
    let mut dst = device.alloc(DType::I32, 1).unwrap();
    let ask = || {
        let stream = stream.clone();
        move || stream.sync().map_err(|e| (e.code(), e.message().contains("within a call on it")))
    };
    let refused = [Err((Code::InvalidArgument, true))];
    // The stream of one thread, and then of two.
    for _ in 0..2 {
        sim.talks.store(true, Ordering::Relaxed);
        let (copied, answers) = told(ask(), || stream.copy(&src, &mut dst));
        assert_eq!((copied, &*answers), (Ok(()), &refused[..]));
        let (recorded, answers) = told(ask(), || stream.capture(|_| Ok(())).map(drop));
        assert_eq!((recorded, &*answers), (Ok(()), &refused[..]));
        sim.talks.store(false, Ordering::Relaxed);
        assert_eq!(dst.download::<i32>().unwrap(), [7]);
        std::thread::scope(|s| drop(s.spawn(|| stream.sync().unwrap())));
    }
    no_violations(&sim);
}

#[test]
fn what_a_new_lane_tells_comes_without_a_lock() {
    let (runtime, sim) = late_of_two();
    let device = runtime.device("late").unwrap();
    assert_eq!(device.members().len(), 2);
    let add = runtime.primitive::<Add>(device, AddDesc::new(DType::F32)).unwrap();
    let src = Arc::new(device.upload(&[1f32, -2.0]).unwrap());
    let (mut x, mut y) = (device.alloc(DType::F32, 2).unwrap(), device.alloc(DType::F32, 2).unwrap());
    let graph = device.stream().unwrap().capture(|s| s.copy(&*src, &mut x)).unwrap();
    sim.fail_adoption.store(true, Ordering::Relaxed);
    let mut copy = |s: &Stream| s.copy(&*src, &mut y);
    let mut z = device.alloc(DType::F32, 2).unwrap();
    let srcs = [Source(&src, &|| ()); 2];
    let mut launch = |s: &Stream| add.launch(s, AddCall { count: 2, srcs: &srcs, dst: &mut z });
    let mut launch_graph = |s: &Stream| graph.launch(s);
    let mut record = |s: &Stream| s.capture(|_| Ok(())).map(drop);
    type Call<'a> = &'a mut dyn FnMut(&Stream) -> ep_core::Result<()>;
    let calls: [Call<'_>; 4] = [&mut launch_graph, &mut copy, &mut launch, &mut record];
    for (name, call) in ["a graph", "a copy", "a launch", "a recording"].into_iter().zip(calls) {
        let stream = device.stream().unwrap();
        let (src, mine) = (src.clone(), stream.clone());
        // On another thread, as this one may wait for itself: for a gate of the graph's buffer.
        let ask = move || {
            let (sender, receiver) = std::sync::mpsc::channel();
            let src = src.clone();
            std::thread::spawn(move || sender.send(src.download::<f32>()));
            let content = receiver.recv_timeout(std::time::Duration::from_secs(10));
            (content.ok().and_then(Result::ok), mine.query().is_ok())
        };
        let (called, answers) = told(ask, || call(&stream));
        assert_eq!(called, Ok(()), "{name}");
        assert_eq!(answers, [(Some(vec![1.0, -2.0]), true)], "{name}");
    }
    // Kept for work of the first provider, which the second's first call asks for.
    let stream = device.stream().unwrap();
    stream.upload(&mut x, vec![3f32]).unwrap();
    sim.fail_queries.store(true, Ordering::Relaxed);
    let (called, answers) = told(|| (), || stream.copy(&*src, &mut y));
    assert_eq!((called, answers.len()), (Ok(()), 2), "neither the lane nor the query is left out");
    sim.fail_queries.store(false, Ordering::Relaxed);
    stream.sync().unwrap();
    no_violations(&sim);
}

#[test]
fn what_the_end_of_a_buffer_or_a_stream_tells_comes_without_a_lock() {
    let (runtime, sim) = late();
    let device = runtime.device("late").unwrap();
    // SAFETY: the simulation has a queue of every number.
    let stream = unsafe { device.adopt_stream(QUEUES, 1 << 40) }.unwrap();
    let src = device.upload(&[7i32]).unwrap();
    let mut dst = device.alloc(DType::I32, 1).unwrap();
    stream.copy(&src, &mut dst).unwrap();
    sim.fail_next_event.store(true, Ordering::Relaxed);
    sim.fail_syncs.store(true, Ordering::Relaxed);
    let mine = stream.clone();
    let ((), answers) = told(move || mine.query(), || drop(src));
    assert_eq!(answers, [Ok(true), Ok(true)], "why it was waited for, and how that ended");
    // The buffer remembers the stream.
    let ((), answers) = told(|| (), || drop(stream));
    assert_eq!(answers.len(), 1);
    no_violations(&sim);
}

#[test]
fn deleters_run_before_a_recording() {
    let (runtime, sim) = late();
    let device = runtime.device("late").unwrap();
    let stream = device.stream().unwrap();
    let other = device.upload(&[3u8; 4]).unwrap();
    let (mut dst, mut copied) = (device.alloc(DType::U8, 4).unwrap(), device.alloc(DType::U8, 4).unwrap());
    // One deleter queues work, which keeps memory with a deleter of its own in turn.
    let (later, told) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(None)));
    let (seen, tell, mine) = (later.clone(), told.clone(), stream.clone());
    let imported = |data: &'static [u8; 4], deleter: Box<dyn FnOnce() + Send>| {
        let address = data.as_ptr().expose_provenance() as u64;
        // SAFETY: the array is never freed, and only read.
        unsafe { Buffer::import(device, SPACE, address, 4, DType::U8, deleter) }.unwrap()
    };
    let next = imported(&[5; 4], Box::new(move || seen.store(true, Ordering::Relaxed)));
    let mut scratch = device.alloc(DType::U8, 4).unwrap();
    let deleter = move || {
        let queued = mine.copy(&other, &mut copied).and_then(|()| mine.copy(&next, &mut scratch));
        drop((next, scratch));
        *tell.lock().unwrap() = Some((queued, mine.query(), copied));
    };
    let src = imported(&[9; 4], Box::new(deleter));
    stream.copy(&src, &mut dst).unwrap();
    drop(src);
    let graph = stream.capture(|_| {
        assert!(!later.load(Ordering::Relaxed), "a deleter runs within the recording, or right before it");
        Ok(())
    });
    let (queued, asked, copied) = told.lock().unwrap().take().expect("the recording has waited for the copy");
    assert_eq!((queued, asked), (Ok(()), Ok(false)));
    assert!(format!("{:?}", graph.unwrap()).contains("0 buffers"));
    assert_eq!(copied.download::<u8>().unwrap(), [3; 4]);
    stream.sync().unwrap();
    assert!(later.load(Ordering::Relaxed));
    assert_eq!(dst.download::<u8>().unwrap(), [9; 4]);
    no_violations(&sim);
}

/// A buffer of which the memory belongs to nobody, and whose deleter tells what `call` returns on another thread: as a
/// deleter that needs an interpreter's lock does. `None` after ten seconds.
fn whose_deleter_asks<T: Send + 'static>(
    device: &ep_registry::Device,
    data: &'static [u8; 4],
    call: impl FnOnce() -> T + Send + 'static,
) -> (Buffer, Arc<Mutex<Option<T>>>) {
    let told = Arc::new(Mutex::new(None));
    let tell = told.clone();
    let deleter = move || {
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || sender.send(call()));
        *tell.lock().unwrap() = receiver.recv_timeout(std::time::Duration::from_secs(10)).ok();
    };
    let address = data.as_ptr().expose_provenance() as u64;
    // SAFETY: the array is never freed, and only read.
    let buffer = unsafe { Buffer::import(device, SPACE, address, 4, DType::U8, deleter) }.unwrap();
    (buffer, told)
}

#[test]
fn a_deleter_that_waits_for_a_buffer_of_a_graph_gets_it() {
    let (runtime, _) = late();
    let device = runtime.device("late").unwrap();
    let stream = device.stream().unwrap();
    let x = Arc::new(device.upload(&[5u8; 4]).unwrap());
    let mut y = device.alloc(DType::U8, 4).unwrap();
    let graph = stream.capture(|s| s.copy(&*x, &mut y)).unwrap();
    let launches: [&dyn Fn(); 2] = [&|| graph.launch(&stream).unwrap(), &|| {
        let mut z = device.alloc(DType::U8, 4).unwrap();
        stream.copy(&*x, &mut z).unwrap();
    }];
    for launch in launches {
        let x = x.clone();
        let (src, told) = whose_deleter_asks(device, &[9; 4], move || x.download::<u8>());
        let mut dst = device.alloc(DType::U8, 4).unwrap();
        stream.copy(&src, &mut dst).unwrap();
        drop(src);
        // The copy is done, and the stream has not noticed.
        wait_for(&stream);
        assert!(told.lock().unwrap().is_none());
        launch();
        assert_eq!(told.lock().unwrap().take(), Some(Ok(vec![5; 4])), "the deleter runs without a lock");
        stream.sync().unwrap();
    }
}

/// Until the work of a stream is done, by an event, which tells the stream nothing.
fn wait_for(stream: &Stream) {
    let event = ep_registry::Event::new();
    stream.record(&event).unwrap();
    event.sync().unwrap();
}

#[test]
fn a_stream_whose_last_work_is_taken_over_is_closed_without_a_lock() {
    let (runtime, sim) = late();
    let device = runtime.device("late").unwrap();
    // The buffer's list has the last reference to the dropped stream: while its work is under way, and after the stream
    // was asked and knows that it is done.
    for done in [false, true] {
        let (a, b) = (device.stream().unwrap(), device.stream().unwrap());
        let other = device.upload(&[1u8; 4]).unwrap();
        let mut between = device.alloc(DType::U8, 4).unwrap();
        let on_b = b.clone();
        let (src, told) = whose_deleter_asks(device, &[9; 4], move || {
            let mut copy = other.device().alloc(DType::U8, 4).unwrap();
            on_b.copy(&other, &mut copy).unwrap();
            copy.download::<u8>().unwrap()
        });
        a.copy(&src, &mut between).unwrap();
        drop(src);
        if done {
            wait_for(&a);
            assert!(a.query().unwrap());
        }
        drop(a);
        assert!(told.lock().unwrap().is_none(), "{done}");
        let last = device.upload(&[3u8; 4]).unwrap();
        b.copy(&last, &mut between).unwrap();
        assert_eq!(told.lock().unwrap().take(), Some(vec![1; 4]), "{done}: the deleter runs without a lock");
        assert_eq!(between.download::<u8>().unwrap(), [3; 4]);
        b.sync().unwrap();
    }
    no_violations(&sim);
}

#[test]
fn a_stream_that_a_graph_meets_last_is_closed_without_a_lock() {
    let (runtime, sim) = late();
    let device = runtime.device("late").unwrap();
    // While the stream's work is under way, and after the stream was asked: then the buffers' lists let go of it at once.
    for done in [false, true] {
        let (a, b) = (device.stream().unwrap(), device.stream().unwrap());
        let y = device.upload(&[5u8; 4]).unwrap();
        let mut x = device.upload(&[4u8; 4]).unwrap();
        let graph = b.capture(|s| s.copy(&y, &mut x)).unwrap();
        let x = Arc::new(x);
        let of_graph = x.clone();
        let (src, told) = whose_deleter_asks(device, &[9; 4], move || of_graph.download::<u8>().unwrap());
        let mut scratch = device.alloc(DType::U8, 4).unwrap();
        a.copy(&src, &mut scratch).unwrap();
        a.copy(&*x, &mut scratch).unwrap();
        drop((src, scratch));
        if done {
            wait_for(&a);
            assert!(a.query().unwrap());
        }
        drop(a);
        assert!(told.lock().unwrap().is_none(), "{done}: the buffer of the graph has the stream");
        graph.launch(&b).unwrap();
        assert_eq!(told.lock().unwrap().take(), Some(vec![5; 4]), "{done}: the deleter runs without a lock");
        b.sync().unwrap();
    }
    no_violations(&sim);
}

#[test]
fn streams_and_buffers_in_any_order_of_dropping() {
    let (runtime, sim) = late();
    let device = runtime.device("late").unwrap();
    let streams: Vec<_> = (0..3).map(|_| device.stream().unwrap()).collect();
    let mut buffers: Vec<_> = (0..4).map(|i| device.upload(&[i as u8; 33]).unwrap()).collect();
    for (round, stream) in streams.iter().cycle().take(12).enumerate() {
        let mut dst = buffers.remove(round % 3);
        stream.copy(&buffers[(round * 2) % 3], &mut dst).unwrap();
        buffers.push(dst);
    }
    drop(buffers.remove(1));
    drop(streams);
    let kept = buffers.remove(0);
    drop(buffers);
    drop(runtime);
    assert!(kept.download::<u8>().unwrap().iter().all(|v| *v < 4));
    drop(kept);
    no_violations(&sim);
    assert!(sim.state().queues.values().all(VecDeque::is_empty));
}

#[test]
fn an_adopted_stream_ends_with_its_last_clone_while_buffers_live() {
    let (runtime, sim) = late();
    let device = runtime.device("late").unwrap();
    let (src, native) = (device.upload(&[1u8, 2, 3]).unwrap(), 1 << 40);
    let mut dst = device.alloc(DType::U8, 3).unwrap();
    // SAFETY: the simulation has a queue of every number.
    let stream = unsafe { device.adopt_stream(QUEUES, native) }.unwrap();
    let graph = stream.capture(|s| s.copy(&src, &mut dst)).unwrap();
    graph.launch(&stream).unwrap();
    let clone = stream.clone();
    drop(stream);
    assert_eq!(sim.state().queues[&native].len(), 1, "a clone is left");
    assert!(!sim.state().ended.contains(&native));
    drop(clone);
    // Neither the buffers nor the graph use the native stream from now on.
    assert!(sim.state().ended.contains(&native) && sim.state().queues[&native].is_empty());
    assert_eq!(dst.download::<u8>().unwrap(), [1, 2, 3]);
    let other = device.stream().unwrap();
    graph.launch(&other).unwrap();
    drop((src, dst, graph));
    other.sync().unwrap();
    no_violations(&sim);
}

#[test]
fn what_a_recording_wrote_is_read_within_it_only() {
    use std::sync::mpsc::channel;
    let (runtime, _) = late();
    let device = runtime.device("late").unwrap();
    let stream = device.stream().unwrap();
    let add = runtime.primitive::<Add>(device, AddDesc::new(DType::F32)).unwrap();
    let src = device.upload(&[1f32; 4]).unwrap();
    for in_another in [false, true] {
        let mut x = device.alloc(DType::F32, 4).unwrap();
        let ((give, take), (reach, reached)) = (channel::<Buffer>(), channel());
        let ((go, went), (tell, told)) = (channel(), channel());
        let (stream, add, src) = (&stream, &add, &src);
        std::thread::scope(|scope| {
            // A launch of another thread reads what is recorded, and is not through when the recording ends.
            scope.spawn(move || {
                let (x, mut y) = (take.recv().unwrap(), device.alloc(DType::F32, 4).unwrap());
                let wait = || {
                    reach.send(()).unwrap();
                    went.recv().unwrap();
                };
                let srcs = [Source(&x, &|| ()), Source(src, &wait)];
                let launched = add.launch(stream, AddCall { count: 4, srcs: &srcs, dst: &mut y });
                tell.send((launched, y.download::<f32>().is_ok())).unwrap();
            });
            let first = stream.capture(move |s| {
                s.copy(src, &mut x)?;
                give.send(x).unwrap();
                reached.recv().unwrap();
                Ok(())
            });
            let end = || {
                go.send(()).unwrap();
                let (launched, written) = told.recv().unwrap();
                let e = launched.unwrap_err();
                assert!(
                    e.code() == Code::InvalidArgument && e.message().contains("ended the recording"),
                    "{e}"
                );
                assert!(!written, "{in_another}");
                Ok(())
            };
            drop(first.unwrap());
            if in_another { stream.capture(|_| end()).map(drop).unwrap() } else { end().unwrap() }
        });
    }
}

#[test]
fn what_a_failed_call_should_have_written_is_unwritten_in_the_recording() {
    let (runtime, sim) = late();
    let device = runtime.device("late").unwrap();
    let stream = device.stream().unwrap();
    let src = device.upload(&[4i32, 5]).unwrap();
    let (mut x, mut y) = (device.alloc(DType::I32, 2).unwrap(), device.alloc(DType::I32, 2).unwrap());
    let fails = |x: &mut Buffer, y: &mut Buffer, s: &Stream| {
        sim.fail_next_copy.store(true, Ordering::Relaxed);
        assert_eq!(s.copy(&src, &mut *x).unwrap_err().code(), Code::OutOfMemory);
        let e = s.copy(&*x, y).unwrap_err();
        assert!(e.message().contains("only 0..0"), "{e}");
        Ok(())
    };
    let failed = stream.capture(|s| fails(&mut x, &mut y, s)).unwrap();
    failed.launch(&stream).unwrap();
    assert_eq!(x.download::<i32>().unwrap_err().code(), Code::InvalidArgument);
    let graph = stream.capture(|s| {
        fails(&mut x, &mut y, s)?;
        s.copy(&src, &mut x)?;
        s.copy(&x, &mut y)
    });
    graph.unwrap().launch(&stream).unwrap();
    assert_eq!(y.download::<i32>().unwrap(), [4, 5]);
    no_violations(&sim);
}

#[test]
fn a_deleter_may_panic() {
    let (runtime, _) = late();
    let device = runtime.device("late").unwrap();
    let mut data = [0u8; 8];
    let address = data.as_mut_ptr().expose_provenance() as u64;
    // SAFETY: the array outlives the buffer, and nobody touches it meanwhile.
    let buffer = unsafe { Buffer::import(device, SPACE, address, 8, DType::U8, || panic!("no")) }.unwrap();
    drop(buffer);
}

#[test]
fn handles_may_be_shared_between_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<Runtime>();
    shared::<Buffer>();
    shared::<Stream>();
    shared::<ep_registry::Primitive<Permute>>();
    shared::<ep_registry::DynPrimitive>();
}

#[test]
fn a_rank_is_set_by_its_dims_only() {
    let (runtime, _) = late();
    let device = runtime.device("late").unwrap();
    let request = runtime.request("permute").unwrap().dtype("data", "f32").unwrap();
    let primitive = runtime.primitive_dyn(device, &request).unwrap();
    let args = primitive.args().dims("src_dims", &[2, 2]).unwrap().dims("permutation", &[1, 0]).unwrap();
    let e = args.size("num_dims", 8).unwrap_err();
    assert_eq!(e.code(), Code::InvalidArgument);
    assert!(e.message().contains("dims()"), "{e}");
}

/// Left out, they would count as 0, and the launch would do nothing or something else.
#[test]
fn sizes_and_shapes_that_a_launch_needs_are_asked_for() {
    let (runtime, _) = late();
    let device = runtime.device("late").unwrap();
    let stream = device.stream().unwrap();
    let request = runtime.request("permute").unwrap().dtype("data", "f32").unwrap();
    let primitive = runtime.primitive_dyn(device, &request).unwrap();
    let src = device.upload(&[1f32; 4]).unwrap();
    let mut dst = device.alloc(DType::F32, 4).unwrap();
    for (dims, permutation, missing) in [
        (false, false, "`src_dims`, `permutation`"),
        (true, false, "`permutation`"),
        (false, true, "`src_dims`"),
    ] {
        let mut args = primitive.args();
        if permutation {
            args = args.dims("permutation", &[1, 0]).unwrap();
        }
        if dims {
            args = args.dims("src_dims", &[2, 2]).unwrap();
        }
        // SAFETY: refused before anything is looked at.
        let raw = unsafe { primitive.launch_raw(&stream, &args) };
        let safe = args.read("src", &src).unwrap().write("dst", &mut dst).unwrap();
        for e in [raw.unwrap_err(), primitive.launch(&stream, safe).unwrap_err()] {
            assert_eq!(e.code(), Code::InvalidArgument);
            assert!(e.message().contains(&format!("permute: {missing} not given")), "{e}");
        }
    }
}

#[test]
fn parts_outside_of_a_buffer_are_refused_without_overflow() {
    let (runtime, _) = late();
    let mut buffer = runtime.device("late").unwrap().upload(&[0f64; 5]).unwrap();
    for (start, len) in [(1 << 61, 1), (usize::MAX, 0), (0, usize::MAX), (6, 0), (4, 2)] {
        assert!(buffer.slice(start, len).is_err(), "{start} {len}");
        assert!(buffer.slice_mut(start, len).is_err(), "{start} {len}");
    }
    assert!(buffer.slice(5, 0).is_ok() && buffer.slice(4, 1).is_ok());
}

/// A provider's code that a lookup runs may come back to the runtime, through a log subscriber for one.
#[test]
fn the_registry_may_change_while_it_is_read() {
    let (runtime, _) = late();
    runtime.with_registry(|before| {
        let factories = || before.op("permute").unwrap().factories.len();
        assert_eq!(factories(), 1);
        runtime.deregister("late").unwrap();
        assert_eq!(factories(), 1);
        runtime.with_registry(|after| assert!(after.op("permute").unwrap().factories.is_empty()));
    });
}

#[test]
fn a_cached_primitive_is_not_for_a_device_of_another_runtime() {
    let ((one, _), (two, _)) = (late(), late());
    let (mine, other) = (one.device("late").unwrap(), two.device("late").unwrap());
    let desc = PermuteDesc::new(DType::F32);
    one.primitive::<Permute>(mine, desc).unwrap();
    let e = one.primitive::<Permute>(other, desc).unwrap_err();
    assert!(e.message().contains("another runtime"), "{e}");
}

/// Explaining asks custom predicates of providers, which are found by the instance's name. That of the other runtime may
/// be of another provider, whose device they would take for one of their own.
#[test]
fn a_device_of_another_runtime_is_not_explained() {
    let ((one, _), (two, _)) = (late(), late());
    let (mine, other) = (one.device("late").unwrap(), two.device("late").unwrap());
    let request = one.request("permute").unwrap().dtype("data", "f32").unwrap();
    assert!(one.explain(mine, &request).unwrap().chosen().is_some());
    let e = one.explain(other, &request).unwrap_err();
    assert_eq!(e.code(), Code::InvalidArgument);
    assert!(e.message().contains("late:0 is a device of another runtime"), "{e}");
}

#[test]
fn a_launch_keeps_the_alignment_that_the_descriptor_promised() {
    let (runtime, _) = late();
    let device = runtime.device("late").unwrap();
    let desc = PermuteDesc::new(DType::F32).with_alignment(64);
    let permute = runtime.primitive::<Permute>(device, desc).unwrap();
    let src = device.upload(&[0f32; 17]).unwrap();
    let mut dst = device.alloc(DType::F32, 1).unwrap();
    let stream = device.stream().unwrap();
    let mut launch = |start| {
        let part = src.slice(start, 1).unwrap();
        let call = PermuteCall { src_dims: &[1], permutation: &[0], src: part, dst: &mut dst };
        permute.launch(&stream, call)
    };
    assert_eq!((launch(0), launch(16)), (Ok(()), Ok(())));
    let e = launch(1).unwrap_err();
    assert!(e.message().contains("multiple of 64"), "{e}");
}
