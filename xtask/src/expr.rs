//! The infix expressions of op schemas: `2 * m * n`, `prod(src_dims)`, `max(a, b)`, `min(a, b)`,
//! `broadcast(x, y, ...)`, `padded(dims, before, after)`, `extent(dims, strides)`.

/// A parsed expression over an op's arguments.
pub enum Expr {
    Number(i64),
    Arg(String),
    Prod(String),
    /// Elements of the NumPy broadcast of shapes.
    Broadcast(Vec<String>),
    /// Elements of a shape that is padded in front and behind.
    Padded([String; 3]),
    /// Elements from the first to behind the last of a strided view, which starts at its lowest.
    Extent(String, String),
    Max(Box<Expr>, Box<Expr>),
    Min(Box<Expr>, Box<Expr>),
    Add(Box<Expr>, Box<Expr>),
    Mul(Box<Expr>, Box<Expr>),
}

/// One postfix node: operation, integer constant, argument name.
pub type Node = (&'static str, i64, String);

impl Expr {
    /// Parses the whole of `text`; panics with a message on bad input (this is a build tool).
    pub fn parse(text: &str) -> Expr {
        let mut parser = Parser { text, at: 0 };
        let e = parser.sum();
        assert_eq!(parser.rest(), "", "trailing text in expression `{text}`");
        e
    }

    /// Rust code that computes it as a saturating `u64` from a value `args` and slices named like the dims.
    pub fn rust(&self) -> String {
        match self {
            Expr::Number(n) => format!("{n}"),
            Expr::Arg(a) => format!("count(args.{a})"),
            Expr::Prod(d) => format!("prod({d})"),
            Expr::Broadcast(shapes) => format!("broadcast(&[{}])", shapes.join(", ")),
            Expr::Padded(x) => format!("padded({})", x.join(", ")),
            Expr::Extent(a, b) => format!("extent({a}, {b})"),
            Expr::Max(a, b) => format!("({}).max({})", a.rust(), b.rust()),
            Expr::Min(a, b) => format!("({}).min({})", a.rust(), b.rust()),
            Expr::Add(a, b) => format!("({}).saturating_add({})", a.rust(), b.rust()),
            Expr::Mul(a, b) => match **a {
                Expr::Number(n) => format!("({}).saturating_mul({n})", b.rust()),
                _ => format!("{}.saturating_mul({})", a.rust(), b.rust()),
            },
        }
    }

    /// Its postfix nodes.
    pub fn nodes(&self) -> Vec<Node> {
        let leaf = |op, n, s: &str| vec![(op, n, s.to_owned())];
        // Combines arguments from left to right.
        let chain = |op, names: &[String]| {
            let mut v = leaf("ARG", 0, &names[0]);
            for name in &names[1..] {
                v.extend(leaf("ARG", 0, name));
                v.push((op, 0, String::new()));
            }
            v
        };
        let join = |op, a: &Expr, b: &Expr| {
            let mut v = a.nodes();
            v.extend(b.nodes());
            v.push((op, 0, String::new()));
            v
        };
        match self {
            Expr::Number(n) => leaf("CONST", *n, ""),
            Expr::Arg(a) => leaf("ARG", 0, a),
            Expr::Prod(d) => leaf("PROD", 0, d),
            Expr::Broadcast(shapes) => chain("BROADCAST", shapes),
            Expr::Padded(x) => chain("ADD", x),
            Expr::Extent(a, b) => chain("EXTENT", &[a.clone(), b.clone()]),
            Expr::Max(a, b) => join("MAX", a, b),
            Expr::Min(a, b) => join("MIN", a, b),
            Expr::Add(a, b) => join("ADD", a, b),
            Expr::Mul(a, b) => join("MUL", a, b),
        }
    }
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Parser<'a> {
    fn rest(&self) -> &'a str {
        self.text[self.at..].trim_start()
    }

    fn eat(&mut self, token: &str) -> bool {
        let rest = self.rest();
        let hit = rest.starts_with(token);
        if hit {
            self.at = self.text.len() - rest.len() + token.len();
        }
        hit
    }

    fn expect(&mut self, token: &str) {
        assert!(self.eat(token), "expected `{token}` at `{}` in `{}`", self.rest(), self.text);
    }

    fn sum(&mut self) -> Expr {
        let mut e = self.product();
        while self.eat("+") {
            e = Expr::Add(Box::new(e), Box::new(self.product()));
        }
        e
    }

    fn product(&mut self) -> Expr {
        let mut e = self.atom();
        while self.eat("*") {
            e = Expr::Mul(Box::new(e), Box::new(self.atom()));
        }
        e
    }

    fn word(&mut self) -> String {
        let rest = self.rest();
        let len = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        assert!(len > 0, "expected a name at `{rest}` in `{}`", self.text);
        self.at = self.text.len() - rest.len() + len;
        rest[..len].to_owned()
    }

    fn atom(&mut self) -> Expr {
        if self.eat("(") {
            let e = self.sum();
            self.expect(")");
            return e;
        }
        let word = self.word();
        if let Ok(n) = word.parse() {
            return Expr::Number(n);
        }
        if !self.eat("(") {
            return Expr::Arg(word);
        }
        let e = match word.as_str() {
            "prod" => Expr::Prod(self.word()),
            "broadcast" => {
                let mut shapes = vec![self.word()];
                while self.eat(",") {
                    shapes.push(self.word());
                }
                Expr::Broadcast(shapes)
            }
            "padded" => {
                let dims = self.word();
                self.expect(",");
                let before = self.word();
                self.expect(",");
                Expr::Padded([dims, before, self.word()])
            }
            "extent" => {
                let dims = self.word();
                self.expect(",");
                Expr::Extent(dims, self.word())
            }
            "max" | "min" => {
                let a = Box::new(self.sum());
                self.expect(",");
                let b = Box::new(self.sum());
                if word == "max" { Expr::Max(a, b) } else { Expr::Min(a, b) }
            }
            other => panic!("unknown function `{other}` in `{}`", self.text),
        };
        self.expect(")");
        e
    }
}
