//! The parts of an ELF file that [`elf_check`](crate::elf_check) asks for.
//!
//! Every offset, size and count is checked against the file before use, every loop and every allocation
//! has a bound of its own. Symbols are found as the dynamic loader finds them, from the dynamic section
//! through the hash table, so files without section headers work.

use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use elf::abi;
use elf::dynamic::Dyn;
use elf::endian::NativeEndian;
use elf::file::{Class, FileHeader};
use elf::note::{Note, NoteIterator};
use elf::parse::{ParseAt, ParsingTable};
use elf::segment::ProgramHeader;
use elf::symbol::Symbol;
use ep_core::Error;

const HEADER: usize = 64;
const PROGRAM_HEADER: usize = 56;
const SYMBOL: usize = 24;
const DF_1_PIE: u64 = abi::DF_1_PIE.unsigned_abs();

/// What one read returns at most; also the length at which names are given up.
const NAME: usize = 4096;
const MAX_PROGRAM_HEADERS: u16 = 1024;
const MAX_DYNAMIC: u64 = 1 << 20;
const MAX_NOTES: u64 = 1 << 16;
const MAX_NEEDED: usize = 1024;
const MAX_CHAIN: u32 = 1 << 16;
const MAX_UNDEFINED: u32 = 1 << 18;

/// `e_machine` by name, the name being that of `std::env::consts::ARCH` where Rust has one.
const MACHINES: [(u16, &str); 14] = [
    (abi::EM_X86_64, "x86_64"),
    (abi::EM_AARCH64, "aarch64"),
    (abi::EM_386, "x86"),
    (abi::EM_ARM, "arm"),
    (abi::EM_RISCV, "riscv64"),
    (abi::EM_PPC64, "powerpc64"),
    (abi::EM_PPC, "powerpc"),
    (abi::EM_S390, "s390x"),
    (abi::EM_LOONGARCH, "loongarch64"),
    (abi::EM_MIPS, "mips64"),
    (abi::EM_SPARCV9, "sparc64"),
    (abi::EM_IA_64, "ia64"),
    (abi::EM_BPF, "bpf"),
    (abi::EM_CUDA, "cuda"),
];

/// Why a file is not a library that can be loaded: what was found, and what to do.
#[derive(Debug)]
pub(crate) struct Problem {
    found: String,
    advice: &'static str,
    unreadable: bool,
}

impl Problem {
    fn new(found: impl Into<String>, advice: &'static str) -> Problem {
        Problem { found: found.into(), advice, unreadable: false }
    }

    fn cut_short(what: &str, end: Option<u64>, size: u64) -> Problem {
        let end = end.map_or("a byte past 2^64".to_owned(), |end| format!("byte {end}"));
        Problem::new(
            format!("is cut short or damaged: {what} ends at {end} but the file has {size}"),
            "copy, download or build it again",
        )
    }

    fn damaged(what: impl Into<String>) -> Problem {
        Problem::new(format!("is damaged: {}", what.into()), "copy, download or build it again")
    }

    pub(crate) fn into_error(self, path: &Path) -> Error {
        let message = format!("{}: {}; {}", path.display(), self.found, self.advice);
        if self.unreadable { Error::unavailable(message) } else { Error::invalid(message) }
    }
}

/// A file with a program header table in which every segment lies inside the file.
pub(crate) struct Image<R> {
    blocks: Blocks<R>,
    segments: Vec<ProgramHeader>,
    dynamic: Vec<Dyn>,
}

impl<R: Read + Seek> Image<R> {
    /// Reads the headers and the dynamic section, and checks that this is a whole 64-bit shared library
    /// for this machine.
    pub(crate) fn open(reader: R, size: u64) -> Result<Image<R>, Problem> {
        let mut blocks = Blocks { reader, size, block: Vec::new(), at: 0 };
        let head = blocks.up_to(0, HEADER)?.to_vec();
        check_format(&head, size)?;
        let header = elf::file::parse_ident(&head)
            .and_then(|ident| FileHeader::<NativeEndian>::parse_tail(ident, &head[abi::EI_NIDENT..]))
            .map_err(|error| Problem::damaged(error.to_string()))?;
        check_machine(header.e_machine)?;
        check_type(header.e_type)?;

        let (count, entry) = (header.e_phnum, header.e_phentsize);
        if count == 0 || count > MAX_PROGRAM_HEADERS || usize::from(entry) != PROGRAM_HEADER {
            return Err(Problem::damaged(format!(
                "it claims {count} program headers of {entry} bytes, where 1 to {MAX_PROGRAM_HEADERS} of {PROGRAM_HEADER} are usual"
            )));
        }
        let table = u64::from(count) * PROGRAM_HEADER as u64;
        let segments: Vec<ProgramHeader> =
            entries(&blocks.vec("the program header table", header.e_phoff, table)?);
        for (index, segment) in segments.iter().enumerate() {
            let end = segment.p_offset.checked_add(segment.p_filesz);
            if segment.p_filesz > 0 && end.is_none_or(|end| end > size) {
                let what = format!("segment {index} ({})", segment_name(segment.p_type));
                return Err(Problem::cut_short(&what, end, size));
            }
        }
        // The loader never reads this table. It is the last thing that linkers write, so it tells a file of
        // which only the end is missing; `strip` variants that drop it zero its offset.
        if header.e_shoff != 0 {
            let end = header.e_shoff.checked_add(u64::from(header.e_shnum) * u64::from(header.e_shentsize));
            if end.is_none_or(|end| end > size) {
                return Err(Problem::cut_short("the section header table", end, size));
            }
        }
        if !segments.iter().any(|s| s.p_type == abi::PT_LOAD) {
            return Err(Problem::damaged("it has no segment to load"));
        }
        let dynamic = match segments.iter().find(|s| s.p_type == abi::PT_DYNAMIC) {
            Some(s) if s.p_filesz <= MAX_DYNAMIC => {
                let bytes = blocks.vec("the dynamic section", s.p_offset, s.p_filesz)?;
                let mut dynamic: Vec<Dyn> = entries(&bytes);
                let used = dynamic.iter().position(|d| d.d_tag == abi::DT_NULL).unwrap_or(dynamic.len());
                dynamic.truncate(used);
                dynamic
            }
            Some(s) => {
                return Err(Problem::damaged(format!("its dynamic section claims {} bytes", s.p_filesz)));
            }
            None => {
                return Err(Problem::new(
                    "is linked statically and has no dynamic section",
                    "link it with `-shared`",
                ));
            }
        };
        let image = Image { blocks, segments, dynamic };
        if image.value(abi::DT_FLAGS_1).is_some_and(|flags| flags & DF_1_PIE != 0) {
            return Err(Problem::new("is a program, not a shared library", "link it with `-shared`"));
        }
        Ok(image)
    }

    /// The names of the libraries that this one needs.
    pub(crate) fn needed(&mut self) -> Result<Vec<String>, Problem> {
        let offsets: Vec<u64> =
            self.dynamic.iter().filter(|d| d.d_tag == abi::DT_NEEDED).map(Dyn::d_val).collect();
        if offsets.len() > MAX_NEEDED {
            return Err(Problem::damaged(format!("it claims to need {} libraries", offsets.len())));
        }
        offsets.into_iter().map(|at| self.dynamic_name(at, "a needed library")).collect()
    }

    /// The name it was linked as.
    pub(crate) fn soname(&mut self) -> Result<Option<String>, Problem> {
        self.value(abi::DT_SONAME).map(|at| self.dynamic_name(at, "its own name")).transpose()
    }

    /// The build id in hexadecimal.
    pub(crate) fn build_id(&mut self) -> Result<Option<String>, Problem> {
        let notes: Vec<ProgramHeader> = self
            .segments
            .iter()
            .filter(|s| s.p_type == abi::PT_NOTE && s.p_filesz <= MAX_NOTES)
            .copied()
            .collect();
        for segment in notes {
            let bytes = self.blocks.vec("a note", segment.p_offset, segment.p_filesz)?;
            let align = if segment.p_align == 8 { 8 } else { 4 };
            for note in NoteIterator::new(NativeEndian, Class::ELF64, align, &bytes) {
                if let Note::GnuBuildId(id) = note {
                    return Ok(Some(id.0.iter().map(|byte| format!("{byte:02x}")).collect()));
                }
            }
        }
        Ok(None)
    }

    /// Whether a lookup of `name` by the dynamic loader finds a function that this file defines.
    pub(crate) fn exports_function(&mut self, name: &str) -> Result<bool, Problem> {
        if let Some(table) = self.table(abi::DT_GNU_HASH)? {
            return self.find_gnu(table, name);
        }
        match self.table(abi::DT_HASH)? {
            Some(table) => self.find_sysv(table, name),
            // Without a hash table the loader finds nothing either.
            None => Ok(false),
        }
    }

    /// The names that other libraries or the program must define; weak ones may stay undefined and are
    /// left out. In a library that exports nothing the GNU table may not tell how many there are.
    pub(crate) fn undefined_symbols(&mut self) -> Result<Vec<String>, Problem> {
        let Some(symbols) = self.table(abi::DT_SYMTAB)? else { return Ok(Vec::new()) };
        // The GNU hash table covers the defined symbols, which the linker puts last.
        let count = if let Some(table) = self.table(abi::DT_GNU_HASH)? {
            self.u32_at(table, 1)?
        } else if let Some(table) = self.table(abi::DT_HASH)? {
            self.u32_at(table, 1)?
        } else {
            0
        };
        let count = count.min(MAX_UNDEFINED);
        let bytes = u64::from(count) * SYMBOL as u64;
        let symbols: Vec<Symbol> = entries(&self.blocks.vec("the symbol table", symbols, bytes)?);
        let wanted = symbols.iter().filter(|s| s.is_undefined() && s.st_bind() == abi::STB_GLOBAL);
        wanted.map(|s| self.dynamic_name(u64::from(s.st_name), "a symbol")).collect()
    }

    fn find_gnu(&mut self, table: u64, name: &str) -> Result<bool, Problem> {
        let (buckets, first) = (self.u32_at(table, 0)?, self.u32_at(table, 1)?);
        // Counted in words of the table: a 4-word head, then the bloom filter in 64-bit words.
        let bucket_table = 4 + 2 * u64::from(self.u32_at(table, 2)?);
        let hash = elf::hash::gnu_hash(name.as_bytes());
        let Some(bucket) = hash.checked_rem(buckets) else { return Ok(false) };
        let start = self.u32_at(table, bucket_table + u64::from(bucket))?;
        if start < first {
            return Ok(false);
        }
        let chain_table = bucket_table + u64::from(buckets);
        for index in (start..=u32::MAX).take(MAX_CHAIN as usize) {
            let entry = self.u32_at(table, chain_table + u64::from(index - first))?;
            if entry | 1 == hash | 1 && self.is_function(index, name)? {
                return Ok(true);
            }
            if entry & 1 == 1 {
                return Ok(false);
            }
        }
        Err(Problem::damaged("a chain in its symbol hash table has no end"))
    }

    fn find_sysv(&mut self, table: u64, name: &str) -> Result<bool, Problem> {
        let buckets = self.u32_at(table, 0)?;
        let Some(bucket) = elf::hash::sysv_hash(name.as_bytes()).checked_rem(buckets) else {
            return Ok(false);
        };
        let mut index = self.u32_at(table, 2 + u64::from(bucket))?;
        for _ in 0..MAX_CHAIN {
            if index == 0 {
                return Ok(false);
            }
            if self.is_function(index, name)? {
                return Ok(true);
            }
            index = self.u32_at(table, 2 + u64::from(buckets) + u64::from(index))?;
        }
        Err(Problem::damaged("a chain in its symbol hash table has no end"))
    }

    fn is_function(&mut self, index: u32, name: &str) -> Result<bool, Problem> {
        let Some(symbols) = self.table(abi::DT_SYMTAB)? else { return Ok(false) };
        let at = symbols.saturating_add(u64::from(index) * SYMBOL as u64);
        let bytes = self.blocks.exactly("a symbol", at, SYMBOL)?;
        let Some(symbol) = entries::<Symbol>(bytes).pop() else { return Ok(false) };
        // Assembler sources often leave the type out.
        let kind = matches!(symbol.st_symtype(), abi::STT_FUNC | abi::STT_GNU_IFUNC | abi::STT_NOTYPE);
        let bound = matches!(symbol.st_bind(), abi::STB_GLOBAL | abi::STB_WEAK);
        let visible = matches!(symbol.st_vis(), abi::STV_DEFAULT | abi::STV_PROTECTED);
        if !kind || !bound || !visible || symbol.is_undefined() || !self.is_code(symbol.st_value) {
            return Ok(false);
        }
        Ok(self.dynamic_name(u64::from(symbol.st_name), "a symbol")? == name)
    }

    fn is_code(&self, address: u64) -> bool {
        self.segments.iter().any(|s| {
            s.p_type == abi::PT_LOAD
                && s.p_flags & abi::PF_X != 0
                && address.checked_sub(s.p_vaddr).is_some_and(|distance| distance < s.p_filesz)
        })
    }

    fn value(&self, tag: i64) -> Option<u64> {
        self.dynamic.iter().find(|d| d.d_tag == tag).map(Dyn::d_val)
    }

    /// Where in the file the table behind a tag of the dynamic section begins.
    fn table(&self, tag: i64) -> Result<Option<u64>, Problem> {
        let Some(address) = self.value(tag) else { return Ok(None) };
        let place = self.segments.iter().filter(|s| s.p_type == abi::PT_LOAD).find_map(|s| {
            let distance = address.checked_sub(s.p_vaddr).filter(|distance| *distance < s.p_filesz)?;
            s.p_offset.checked_add(distance)
        });
        match place {
            Some(place) => Ok(Some(place)),
            None => {
                Err(Problem::damaged(format!("a table at address {address:#x} is in none of its segments")))
            }
        }
    }

    fn u32_at(&mut self, table: u64, index: u64) -> Result<u32, Problem> {
        let at = table.saturating_add(index.saturating_mul(4));
        Ok(word(self.blocks.exactly("the symbol hash table", at, 4)?, 0))
    }

    /// The name at an offset in the dynamic string table, which ends where `DT_STRSZ` says.
    fn dynamic_name(&mut self, offset: u64, what: &str) -> Result<String, Problem> {
        let outside = || Problem::damaged(format!("the name of {what} is outside its string table"));
        let size = self.value(abi::DT_STRSZ).unwrap_or(0);
        let room = size.checked_sub(offset).filter(|room| *room > 0).ok_or_else(outside)?;
        let start =
            self.table(abi::DT_STRTAB)?.and_then(|table| table.checked_add(offset)).ok_or_else(outside)?;
        let room = usize::try_from(room).unwrap_or(NAME).min(NAME);
        let bytes = self.blocks.up_to(start, room)?;
        let end = bytes.iter().position(|byte| *byte == 0);
        match end {
            Some(end) => Ok(String::from_utf8_lossy(&bytes[..end]).into_owned()),
            // Mangled C++ names can be longer than what is read; nothing that is asked for is.
            None if bytes.len() == NAME => Ok(String::from_utf8_lossy(bytes).into_owned()),
            None => Err(outside()),
        }
    }
}

/// A file read in blocks, of which the latest is kept: neighbouring names and symbols cost no further read.
struct Blocks<R> {
    reader: R,
    size: u64,
    block: Vec<u8>,
    at: u64,
}

impl<R: Read + Seek> Blocks<R> {
    /// Up to `len` (at most [`NAME`]) bytes at `at`, fewer at the end of the file.
    fn up_to(&mut self, at: u64, len: usize) -> Result<&[u8], Problem> {
        let len = usize::try_from(self.size.saturating_sub(at)).unwrap_or(NAME).min(len);
        let held = at.checked_sub(self.at).and_then(|skip| usize::try_from(skip).ok());
        let held = held.filter(|skip| skip.checked_add(len).is_some_and(|end| end <= self.block.len()));
        let skip = match held {
            Some(skip) => skip,
            None => {
                self.block = self.read(at, (self.size.saturating_sub(at)).min(NAME as u64))?;
                self.at = at;
                0
            }
        };
        Ok(&self.block[skip..skip + len])
    }

    /// Exactly `len` (at most [`NAME`]) bytes at `at`.
    fn exactly(&mut self, what: &str, at: u64, len: usize) -> Result<&[u8], Problem> {
        self.inside(what, at, len as u64)?;
        self.up_to(at, len)
    }

    /// A part of the file of a size that the caller has bounded.
    fn vec(&mut self, what: &str, at: u64, len: u64) -> Result<Vec<u8>, Problem> {
        self.inside(what, at, len)?;
        self.read(at, len)
    }

    fn inside(&self, what: &str, at: u64, len: u64) -> Result<(), Problem> {
        match at.checked_add(len) {
            Some(end) if end <= self.size => Ok(()),
            end => Err(Problem::cut_short(what, end, self.size)),
        }
    }

    fn read(&mut self, at: u64, len: u64) -> Result<Vec<u8>, Problem> {
        let mut bytes = Vec::new();
        let read = self
            .reader
            .seek(SeekFrom::Start(at))
            .and_then(|_| self.reader.by_ref().take(len).read_to_end(&mut bytes));
        match read {
            Ok(_) if bytes.len() as u64 == len => Ok(bytes),
            Ok(_) => Err(Problem::cut_short("what was read", at.checked_add(len), self.size)),
            Err(error) => Err(Problem {
                found: format!("cannot be read at byte {at}: {error}"),
                advice: "check the disk or the network it is on",
                unreadable: true,
            }),
        }
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// The whole entries in `bytes`.
fn entries<P: ParseAt>(bytes: &[u8]) -> Vec<P> {
    ParsingTable::<NativeEndian, P>::new(NativeEndian, Class::ELF64, bytes).iter().collect()
}

fn check_format(head: &[u8], size: u64) -> Result<(), Problem> {
    if !head.starts_with(&abi::ELFMAGIC) {
        let (found, advice) = describe(head);
        return Err(Problem::new(format!("is not a shared library but {found}"), advice));
    }
    if head.len() < HEADER {
        return Err(Problem::cut_short("the header", Some(HEADER as u64), size));
    }
    let host = if cfg!(target_endian = "little") { abi::ELFDATA2LSB } else { abi::ELFDATA2MSB };
    let build = "build it for this machine";
    match (head[abi::EI_CLASS], head[abi::EI_DATA]) {
        (abi::ELFCLASS64, data) if data == host => Ok(()),
        (abi::ELFCLASS64, abi::ELFDATA2LSB | abi::ELFDATA2MSB) => Err(Problem::new(
            format!(
                "has the other byte order; this machine is {}-endian",
                if cfg!(target_endian = "little") { "little" } else { "big" }
            ),
            build,
        )),
        (abi::ELFCLASS32, _) => Err(Problem::new("is a 32-bit library, and hosts are 64-bit", build)),
        (class, data) => {
            Err(Problem::damaged(format!("its header claims class {class} and byte order {data}")))
        }
    }
}

fn check_machine(found: u16) -> Result<(), Problem> {
    let here = std::env::consts::ARCH;
    match MACHINES.iter().find(|(_, name)| *name == here) {
        Some((machine, _)) if *machine != found => {
            let name = MACHINES.iter().find(|(machine, _)| *machine == found);
            let name = name.map_or_else(|| format!("machine number {found}"), |(_, name)| (*name).to_owned());
            Err(Problem::new(
                format!("is for {name}, and this machine is {here}"),
                "install or build it for this machine",
            ))
        }
        _ => Ok(()),
    }
}

fn check_type(found: u16) -> Result<(), Problem> {
    let what = match found {
        abi::ET_DYN => return Ok(()),
        abi::ET_REL => "an object file",
        abi::ET_EXEC => "a program",
        abi::ET_CORE => "a core dump",
        _ => return Err(Problem::damaged(format!("its header claims file type {found}"))),
    };
    Err(Problem::new(
        format!("is {what}, not a shared library"),
        "link it with `-shared`, or name another file",
    ))
}

fn segment_name(kind: u32) -> String {
    match kind {
        abi::PT_LOAD => "LOAD".to_owned(),
        abi::PT_DYNAMIC => "DYNAMIC".to_owned(),
        abi::PT_NOTE => "NOTE".to_owned(),
        abi::PT_TLS => "TLS".to_owned(),
        abi::PT_PHDR => "PHDR".to_owned(),
        abi::PT_GNU_EH_FRAME => "EH_FRAME".to_owned(),
        abi::PT_GNU_RELRO => "RELRO".to_owned(),
        other => format!("type {other:#x}"),
    }
}

/// What a file that is not ELF seems to be, and what to do about it.
fn describe(head: &[u8]) -> (String, &'static str) {
    const STARTS: [(&[u8], &str, &str); 16] = [
        (b"MZ", "a Windows DLL or program", "use the build for this system"),
        (b"\xfe\xed\xfa\xce", "a macOS library (Mach-O)", "use the build for this system"),
        (b"\xfe\xed\xfa\xcf", "a macOS library (Mach-O)", "use the build for this system"),
        (b"\xce\xfa\xed\xfe", "a macOS library (Mach-O)", "use the build for this system"),
        (b"\xcf\xfa\xed\xfe", "a macOS library (Mach-O)", "use the build for this system"),
        (b"\xca\xfe\xba\xbe", "a macOS universal library or a Java class", "use the build for this system"),
        (b"!<arch>\n", "a static library", "link it into a shared one with `-shared`"),
        (b"BC\xc0\xde", "LLVM bitcode", "compile and link it with `-shared`"),
        (b"PK\x03\x04", "a zip archive", "unpack it first"),
        (b"\x1f\x8b", "gzip-compressed data", "unpack it first"),
        (b"\x28\xb5\x2f\xfd", "zstd-compressed data", "unpack it first"),
        (b"\xfd7zXZ\0", "xz-compressed data", "unpack it first"),
        (b"version https://git-lfs", "a Git LFS pointer", "fetch the file with `git lfs pull`"),
        (b"#!", "a script", "name the shared library itself"),
        (b"/* GNU ld script", "a linker script", "name the shared library that it refers to"),
        (b"INPUT(", "a linker script", "name the shared library that it refers to"),
    ];
    if head.is_empty() {
        return ("empty".to_owned(), "copy, download or build it again");
    }
    if let Some((_, found, advice)) = STARTS.iter().find(|(start, ..)| head.starts_with(start)) {
        return ((*found).to_owned(), advice);
    }
    let advice = "name the shared library itself";
    // The last character may be cut off.
    let utf8 = std::str::from_utf8(head).map_or_else(|error| error.error_len().is_none(), |_| true);
    if utf8 && head.iter().all(|byte| !byte.is_ascii_control() || byte.is_ascii_whitespace()) {
        return ("text".to_owned(), advice);
    }
    let first: Vec<String> = head.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    (format!("data that begins with {}", first.join(" ")), advice)
}
