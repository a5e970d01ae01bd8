//! The real compiler: every kernel compiles, its code goes into the cache, and a driver finds in it what the provider
//! says of it. Without NVRTC on the machine the tests say so and do nothing; CI installs it.

mod rig;

use elf::ElfBytes;
use elf::endian::AnyEndian;
use ep_core::provider::Allocator;
use ep_core::provider::{Device, MemoryKind, Provider, Stream};
use ep_cuda::cache::Cache;
use ep_cuda::compiler::{Arch, Code, Compiler, Source, Spec};
use ep_cuda::kernel::{Argument, Function, Geometry, Loader};
use ep_cuda::nvrtc::Nvrtc;
use ep_cuda::provider::CudaProvider;
use ep_cuda::settings::Settings;
use ep_cuda::warm;
use rig::ops::Bench;
use rig::{Rig, Setup, stream};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// Where the compiler is, or a line that says why a test does nothing.
fn compiler() -> Option<PathBuf> {
    match Nvrtc::open(None) {
        Ok(nvrtc) => Some(nvrtc.path().to_owned()),
        Err(e) => {
            println!("skipped: {}", e.message().lines().next().unwrap_or_default());
            None
        }
    }
}

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("ep-cuda-{name}-{}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Folder(path)
    }

    fn option(&self) -> Option<&str> {
        self.0.to_str()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

/// One kernel of each source and each dtype or size that it is for, and of the ways that macros choose; which dtype a
/// result has does not count.
fn one_of_each(arch: Arch) -> Vec<Spec> {
    let mut chosen = BTreeMap::new();
    for spec in warm::kernels(arch, None).unwrap() {
        let dtypes: Vec<_> = spec
            .macros
            .iter()
            .filter(|(n, _)| ["EP_SRC", "EP_DATA", "EP_SIZE", "EP_COND", "EP_FEWER", "EP_APART"].contains(n))
            .collect();
        let family = format!("{} {dtypes:?}", spec.source.name);
        chosen.entry(family).or_insert(spec);
    }
    chosen.into_values().collect()
}

/// The same kernel with indices of 64 bits, for more than 2^31 elements; none where indices have one width.
fn wide(mut spec: Spec) -> Option<Spec> {
    let index = spec.macros.iter_mut().find(|(name, _)| *name == "EP_INDEX")?;
    index.1 = "u64".to_owned();
    Some(spec)
}

/// What an instruction is for here.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Instruction {
    /// Waits for earlier work of the stream.
    Wait,
    /// Accesses memory that others have.
    Access,
    /// Goes elsewhere, or ends the thread.
    Leave,
}

/// The machine code of a kernel.
fn machine_code<'a>(image: &'a [u8], entry: &str) -> &'a [u8] {
    let elf = ElfBytes::<AnyEndian>::minimal_parse(image).unwrap();
    let section = elf.section_header_by_name(&format!(".text.{entry}")).unwrap();
    let (code, _) = elf.section_data(&section.expect(entry)).unwrap();
    assert!(!code.is_empty());
    code
}

/// The instructions of a kernel that matter, in order, for sm_90 and sm_100. Their codes are the low twelve bits of each 16
/// bytes, as `cuobjdump -sass` names them.
fn instructions(code: &[u8]) -> Vec<Instruction> {
    let known = |bytes: &[u8]| match u16::from_le_bytes([bytes[0], bytes[1]]) & 0xfff {
        // ACQBULK
        0x82e => Some(Instruction::Wait),
        // LD, LDG, LDGSTS, ST, STG, RED, ATOM, ATOMG, UBLKCP
        0x980 | 0x381 | 0x981 | 0xfae | 0x385 | 0x985 | 0x386 | 0x986 | 0x98e | 0x9a6 | 0x38a | 0x3a8
        | 0x3a9 | 0x9a8 | 0x9a9 | 0x3ba => Some(Instruction::Access),
        // BRA, EXIT
        0x947 | 0x94d => Some(Instruction::Leave),
        _ => None,
    };
    code.chunks_exact(16).filter_map(known).collect()
}

/// Where launches overlap, a kernel has to wait before all else: a compiler that moved a load ahead of that would be seen
/// here alone.
#[track_caller]
fn check_waits(code: &[u8], spec: &Spec, arch: Arch) {
    if arch.number() < 90 {
        return;
    }
    let found = instructions(code);
    assert_eq!(found.first(), Some(&Instruction::Wait), "{spec} for {arch}: {found:?}");
    assert!(found.contains(&Instruction::Access), "{spec} for {arch}: {found:?}");
}

/// Compiles a kernel alone.
#[track_caller]
fn compiled(compiler: &Compiler, spec: &Spec, arch: Arch) {
    let code = compiler.code(spec, arch).unwrap();
    check_waits(machine_code(&code.image.unwrap(), &code.entry), spec, arch);
}

/// Calls for each by as many threads as there are processors.
fn for_all<T: Sync>(items: &[T], f: impl Fn(&T) + Sync) {
    let next = AtomicUsize::new(0);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
                    f(item);
                }
            });
        }
    });
}

/// Compiles kernels for architectures, together where they can be.
fn compile_all(compiler: &Compiler, kernels: Vec<(Arch, Vec<Spec>)>) {
    let bundles = |(arch, specs)| warm::bundled(specs).into_iter().map(move |bundle| (arch, bundle));
    let jobs: Vec<_> = kernels.into_iter().flat_map(bundles).collect();
    for_all(&jobs, |(arch, bundle)| {
        let (image, names) = compiler.together(bundle, *arch).unwrap();
        for (spec, name) in bundle.iter().zip(&names) {
            check_waits(machine_code(&image, name), spec, *arch);
        }
    });
}

#[test]
fn a_kernel_is_compiled_once_and_then_found() {
    let Some(nvrtc) = compiler() else { return };
    let folder = Folder::new("once");
    let arch = Arch::new(9, 0);
    let spec = &warm::kernels(arch, Some("fill")).unwrap()[0];
    let fresh = || Compiler::new(Cache::new(folder.option()), Some(nvrtc.clone()), None);
    let bundle = std::slice::from_ref(spec);
    assert_eq!((fresh().warm(bundle, arch), fresh().warm(bundle, arch)), (Ok(true), Ok(false)));
    let code = fresh().code(spec, arch).unwrap();
    let image = code.image.as_ref().unwrap();
    assert_eq!((&image[..4], code.entry.as_str()), (&b"\x7fELF"[..], "ep_fill"));
    // With the cache filled, no compiler is needed.
    let without = Compiler::new(Cache::new(folder.option()), Some("/nowhere/libnvrtc.so".into()), None);
    assert_eq!(without.code(spec, arch), Ok(code));
    assert_eq!(without.code(spec, Arch::new(8, 0)).unwrap_err().code(), ep_core::Code::Unavailable);
    // A driver of an older major version does not take the code.
    let old = Compiler::new(Cache::new(folder.option()), Some(nvrtc.clone()), Some(11080));
    let error = old.code(spec, arch).unwrap_err();
    assert!(error.code() == ep_core::Code::Unsupported && error.message().contains("pip install"), "{error}");
}

/// The instructions of a kernel, without where those that load constants (LDC) find them: all kernels of an image have one
/// table.
fn instructions_but_for_constants(code: &[u8]) -> Vec<[u8; 16]> {
    let one = |bytes: &[u8; 16]| match u16::from_le_bytes([bytes[0], bytes[1]]) & 0xfff {
        opcode @ (0xab9 | 0xb82) => u128::from(opcode).to_le_bytes(),
        _ => *bytes,
    };
    let (instructions, rest) = code.as_chunks();
    assert!(rest.is_empty());
    instructions.iter().map(one).collect()
}

/// So that it makes no difference who filled the cache, and what was measured of the one holds of the other.
#[test]
fn kernels_have_the_same_code_together_and_alone() {
    let Some(nvrtc) = compiler() else { return };
    let arch = Arch::new(9, 0);
    let compiler = Compiler::new(Cache::new(Some("off")), Some(nvrtc), None);
    // Of each source two kernels that differ most: the ends of its largest bundle.
    let mut largest: BTreeMap<&str, Vec<Spec>> = BTreeMap::new();
    for bundle in warm::bundles(arch, None).unwrap() {
        let known = largest.entry(bundle[0].source.name).or_default();
        if bundle.len() > known.len() {
            *known = bundle;
        }
    }
    let pairs: Vec<Vec<Spec>> =
        largest.into_values().map(|b| vec![b[0].clone(), b[b.len() - 1].clone()]).collect();
    assert!(pairs.len() > 20 && pairs.iter().filter(|pair| pair[0].key() != pair[1].key()).count() > 15);
    for_all(&pairs, |pair| {
        let (image, names) = compiler.together(pair, arch).unwrap();
        for (spec, name) in pair.iter().zip(&names) {
            let alone = compiler.code(spec, arch).unwrap();
            let alone = instructions_but_for_constants(machine_code(&alone.image.unwrap(), &alone.entry));
            let together = instructions_but_for_constants(machine_code(&image, name));
            assert!(alone == together, "{spec}");
        }
    });
}

#[test]
fn a_bundle_in_the_cache_is_found_by_each_of_its_kernels() {
    let Some(nvrtc) = compiler() else { return };
    let folder = Folder::new("bundle");
    let arch = Arch::new(9, 0);
    let bundle = &warm::bundles(arch, Some("fill")).unwrap()[0];
    assert!(bundle.len() > 3);
    let compiler = Compiler::new(Cache::new(folder.option()), Some(nvrtc), None);
    // One is there before, alone.
    assert_eq!(compiler.warm(&bundle[1..2], arch), Ok(true));
    assert_eq!((compiler.warm(bundle, arch), compiler.warm(bundle, arch)), (Ok(true), Ok(false)));
    let without = Compiler::new(Cache::new(folder.option()), Some("/nowhere/libnvrtc.so".into()), None);
    let codes: Vec<_> = bundle.iter().map(|spec| without.code(spec, arch).unwrap()).collect();
    assert_eq!((codes[1].key, codes[1].entry.as_str()), (bundle[1].key(), "ep_fill"));
    let mut together = codes.iter().enumerate().filter(|(i, _)| *i != 1).map(|(_, code)| code);
    let first = together.next().unwrap();
    for (number, code) in together.enumerate() {
        assert_eq!((code.key, &code.image), (first.key, &first.image));
        assert_eq!(code.entry, format!("ep_fill_{}", number + 1));
        let of = |code: &Code| machine_code(code.image.as_ref().unwrap(), &code.entry).to_vec();
        assert!(of(code) != of(first));
    }
}

#[test]
fn what_does_not_compile_says_where() {
    let Some(nvrtc) = compiler() else { return };
    static BAD: Source =
        Source { name: "bad.cu", text: "extern \"C\" __global__ void f() { oops; }", entry: "f" };
    let compiler = Compiler::new(Cache::new(Some("off")), Some(nvrtc), None);
    let error = compiler.code(&Spec::new(&BAD).with("EP_X", 3), Arch::new(9, 0)).unwrap_err();
    assert_eq!(error.code(), ep_core::Code::Internal);
    for word in ["bad.cu EP_X=3", "identifier \"oops\" is undefined", "sm_90"] {
        assert!(error.message().contains(word), "{word}: {error}");
    }
    let error = compiler.code(&Spec::new(&BAD), Arch::new(3, 5)).unwrap_err();
    assert!(error.code() == ep_core::Code::Unsupported && error.message().contains("only for"), "{error}");
}

/// Compiles the selection for the architectures that the variable names, as CI does; of each source and dtype one.
#[test]
fn one_kernel_of_each_source_and_dtype_compiles() {
    let Some(nvrtc) = compiler() else { return };
    let archs = std::env::var("EP_TEST_ARCHS").unwrap_or_default();
    let archs: Vec<Arch> = archs.split_whitespace().map(|a| a.parse().unwrap()).collect();
    let compiler = Compiler::new(Cache::new(Some("off")), Some(nvrtc), None);
    if archs.is_empty() {
        // A quick look: the first of each source.
        let mut seen = Vec::new();
        for spec in one_of_each(Arch::new(9, 0)) {
            if !seen.contains(&spec.source.name) {
                seen.push(spec.source.name);
                compiled(&compiler, &spec, Arch::new(9, 0));
            }
        }
        assert!(seen.contains(&"fill.cu") && seen.contains(&"softmax.cu"), "{seen:?}");
    }
    let kernels: Vec<_> = archs.iter().map(|arch| (*arch, one_of_each(*arch))).collect();
    let (count, begin) = (kernels.iter().map(|(_, specs)| specs.len()).sum::<usize>(), Instant::now());
    compile_all(&compiler, kernels);
    if count > 0 {
        println!("{count} kernels of {} architectures: {} s", archs.len(), begin.elapsed().as_secs());
    }
}

/// No standard table has them, as few launches need them: of each source one, and in CI of each source and dtype.
#[test]
fn the_kernels_for_more_than_two_to_the_31_elements_compile() {
    let Some(nvrtc) = compiler() else { return };
    let arch = Arch::new(9, 0);
    let compiler = Compiler::new(Cache::new(Some("off")), Some(nvrtc), None);
    let all = std::env::var_os("EP_TEST_ARCHS").is_some();
    let mut seen = Vec::new();
    let mut specs = Vec::new();
    for spec in one_of_each(arch).into_iter().filter_map(wide) {
        if all || !seen.contains(&spec.source.name) {
            seen.push(spec.source.name);
            specs.push(spec);
        }
    }
    compile_all(&compiler, vec![(arch, specs)]);
    println!("{} kernels with indices of 64 bits", seen.len());
    seen.dedup();
    let sources = ["binary", "copy", "copy_runs", "gather", "one_hot", "pad", "unary", "where"];
    assert_eq!(seen, sources.map(|name| format!("{name}.cu")));
}

/// The driver reads the argument's size in the code, and refuses another one.
#[test]
fn arguments_have_the_size_that_the_code_says() {
    let Some(nvrtc) = compiler() else { return };
    let rig = Rig::new(Setup::default());
    let settings = Settings { nvrtc: Some(nvrtc.clone()), ..rig.settings() };
    let device = CudaProvider::new(&settings).unwrap().open_device(0).unwrap();
    let queue = stream(&device);
    let memory = device.open_allocator(MemoryKind::Device).unwrap();
    let x = memory.alloc(64, 64, None).unwrap();

    #[derive(Clone, Copy)]
    #[repr(C)]
    struct Args<const N: usize>([u64; N]);
    // SAFETY: as `Args` of fill.cu where N is 5; with any other number the launch is refused.
    unsafe impl<const N: usize> Argument for Args<N> {}

    let arch = device.properties().arch;
    let spec = &warm::kernels(arch, Some("fill")).unwrap()[2];
    let compiler = Compiler::new(Cache::new(Some("off")), Some(nvrtc), None).into();
    let loader = Loader { context: device.context().unwrap().clone(), compiler, arch };
    let function = Function::load(&loader, "fill", spec).unwrap();
    let geometry = Geometry::linear(1, 256);
    // SAFETY: the destination is inside the allocation; the fake computes nothing.
    unsafe {
        function.launch(&queue, geometry, &Args([16, x, 0, 0, 0])).unwrap();
        let error = function.launch(&queue, geometry, &Args([16, x, 0, 0])).unwrap_err();
        assert!(error.message().contains("fill: cuLaunchKernelEx: CUDA_ERROR_INVALID_VALUE"), "{error}");
        assert!(function.launch(&queue, geometry, &Args([16, x, 0, 0, 0, 0])).is_err());
    }
    queue.sync().unwrap();
    memory.free(x, 64).unwrap();
}

/// Every launch takes the argument that its kernel has: the fake compares it with what the real code says.
#[test]
fn every_op_launches_what_the_compiler_made() {
    let Some(nvrtc) = compiler() else { return };
    let rig = Rig::new(Setup::default());
    {
        let runtime = rig.runtime(&[("nvrtc", nvrtc.to_str().unwrap())]);
        let device = runtime.device("cuda:0").unwrap();
        let queue = device.stream().unwrap();
        let mut bench = Bench::new(&runtime, device, &queue).unwrap();
        bench.each().unwrap();
        bench.others().unwrap();
        queue.sync().unwrap();
    }
    rig.assert_clean();
}
