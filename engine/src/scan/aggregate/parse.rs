//! The list of `--agg`: `count(*), sum(abalance), sum(octet_length(filler))`.

use crate::{Error, ErrorKind, Result};

/// An aggregate function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Function {
    /// `count(*)` counts rows, `count(x)` those where x is not NULL.
    Count,
    /// `sum(x)`
    Sum,
    /// `min(x)`
    Min,
    /// `max(x)`
    Max,
}

/// What an aggregate is taken over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Argument {
    /// `*`
    Star,
    /// A column.
    Column(String),
    /// `octet_length(column)`
    OctetLength(String),
    /// Arithmetic over columns; only for `sum`.
    Expression(Expression),
}

/// Arithmetic over columns of number types, with the types and the errors of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expression {
    /// A column.
    Column(String),
    /// A constant: digits, with an optional point.
    Number(String),
    /// `-a`
    Negate(Box<Expression>),
    /// `a + b`
    Add(Box<Expression>, Box<Expression>),
    /// `a - b`
    Subtract(Box<Expression>, Box<Expression>),
    /// `a * b`
    Multiply(Box<Expression>, Box<Expression>),
}

impl Expression {
    fn has_column(&self) -> bool {
        match self {
            Self::Column(_) => true,
            Self::Number(_) => false,
            Self::Negate(inner) => inner.has_column(),
            Self::Add(a, b) | Self::Subtract(a, b) | Self::Multiply(a, b) => a.has_column() || b.has_column(),
        }
    }
}

/// Parentheses and signs of an expression lie no deeper in each other, and it has no more operators.
const EXPRESSION_MAX: usize = 100;

/// One aggregate of the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AggregateCall {
    /// The function.
    pub function: Function,
    /// Its argument.
    pub argument: Argument,
    /// As the user wrote it: the heading of the result.
    pub text: String,
}

/// Parses a comma-separated list of aggregates.
///
/// # Errors
/// `Usage`, naming the position (in characters, from 1).
pub fn parse(text: &str) -> Result<Vec<AggregateCall>> {
    let mut parser = Parser { text, at: 0, steps: 0 };
    let mut calls = vec![parser.call()?];
    while parser.eat(',') {
        calls.push(parser.call()?);
    }
    parser.skip_blanks();
    if parser.at < text.len() {
        return Err(parser.error("expected a comma or the end"));
    }
    Ok(calls)
}

/// Parses a comma-separated list of column names, folded and quoted as in SQL.
///
/// # Errors
/// `Usage`, naming the position (in characters, from 1).
pub fn parse_columns(text: &str) -> Result<Vec<String>> {
    let mut parser = Parser { text, at: 0, steps: 0 };
    let mut names = vec![parser.name()?];
    while parser.eat(',') {
        names.push(parser.name()?);
    }
    parser.skip_blanks();
    if parser.at < text.len() {
        return Err(parser.error("expected a comma or the end"));
    }
    Ok(names)
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    /// Operators, signs and parentheses of the expression so far.
    steps: usize,
}

impl Parser<'_> {
    fn call(&mut self) -> Result<AggregateCall> {
        self.skip_blanks();
        let start = self.at;
        let function = match self.name()?.as_str() {
            "count" => Function::Count,
            "sum" => Function::Sum,
            "min" => Function::Min,
            "max" => Function::Max,
            other => {
                self.at = start;
                return Err(self.error(&format!("no aggregate {other:?}; there are count, sum, min and max")));
            }
        };
        self.expect('(')?;
        let argument = if self.eat('*') { Argument::Star } else { self.argument(function)? };
        self.expect(')')?;
        if argument == Argument::Star && function != Function::Count {
            self.at = start;
            return Err(self.error("only count can be taken over *"));
        }
        Ok(AggregateCall { function, argument, text: self.text[start..self.at].trim_end().to_owned() })
    }

    fn argument(&mut self, function: Function) -> Result<Argument> {
        self.skip_blanks();
        let start = self.at;
        if let Ok(name) = self.name()
            && name == "octet_length"
            && self.eat('(')
        {
            let inner = self.name()?;
            self.expect(')')?;
            return Ok(Argument::OctetLength(inner));
        }
        self.at = start;
        self.steps = 0;
        let expression = self.sum()?;
        if let Expression::Column(name) = expression {
            return Ok(Argument::Column(name));
        }
        let refused = if function != Function::Sum {
            Some("only sum can be taken over an expression")
        } else if !expression.has_column() {
            Some("expected a column in the expression")
        } else {
            None
        };
        match refused {
            Some(what) => {
                self.at = start;
                Err(self.error(what))
            }
            None => Ok(Argument::Expression(expression)),
        }
    }

    /// Terms with `+` and `-` between them.
    fn sum(&mut self) -> Result<Expression> {
        let mut left = self.product()?;
        loop {
            if self.eat('+') {
                self.step()?;
                left = Expression::Add(Box::new(left), Box::new(self.product()?));
            } else if self.eat('-') {
                self.step()?;
                left = Expression::Subtract(Box::new(left), Box::new(self.product()?));
            } else {
                return Ok(left);
            }
        }
    }

    fn product(&mut self) -> Result<Expression> {
        let mut left = self.factor()?;
        while self.eat('*') {
            self.step()?;
            left = Expression::Multiply(Box::new(left), Box::new(self.factor()?));
        }
        Ok(left)
    }

    fn factor(&mut self) -> Result<Expression> {
        if self.eat('-') {
            self.step()?;
            return Ok(Expression::Negate(Box::new(self.factor()?)));
        }
        if self.eat('(') {
            self.step()?;
            let inner = self.sum()?;
            self.expect(')')?;
            return Ok(inner);
        }
        let rest = &self.text[self.at..];
        let digits = rest.find(|c: char| c != '.' && !c.is_ascii_digit()).unwrap_or(rest.len());
        if digits == 0 {
            return self.name().map(Expression::Column);
        }
        let number = &rest[..digits];
        let follows = rest[digits..].chars().next().is_some_and(|c| c == '_' || c.is_alphabetic());
        if follows || number == "." || number.matches('.').count() > 1 {
            return Err(self.error("expected a number of digits and at most one point"));
        }
        self.at += digits;
        Ok(Expression::Number(number.to_owned()))
    }

    fn step(&mut self) -> Result<()> {
        self.steps += 1;
        if self.steps > EXPRESSION_MAX { Err(self.error("the expression is too long")) } else { Ok(()) }
    }

    fn name(&mut self) -> Result<String> {
        self.skip_blanks();
        let rest = &self.text[self.at..];
        if let Some(quoted) = rest.strip_prefix('"') {
            let mut name = String::new();
            let mut chars = quoted.char_indices().peekable();
            while let Some((i, c)) = chars.next() {
                if c != '"' {
                    name.push(c);
                } else if chars.peek().is_some_and(|&(_, next)| next == '"') {
                    name.push('"');
                    chars.next();
                } else if name.is_empty() {
                    return Err(self.error("a quoted name must not be empty"));
                } else {
                    self.at += 1 + i + 1;
                    return Ok(name);
                }
            }
            return Err(self.error("the quoted name does not end"));
        }
        let starts = |c: char| c == '_' || c.is_alphabetic();
        let goes_on = |c: char| starts(c) || c == '$' || c.is_ascii_digit();
        if !rest.starts_with(starts) {
            return Err(self.error("expected a name"));
        }
        let end = rest.find(|c| !goes_on(c)).unwrap_or(rest.len());
        self.at += end;
        // Only ASCII folds, as the server does for multi-byte encodings.
        Ok(rest[..end].to_ascii_lowercase())
    }

    fn expect(&mut self, c: char) -> Result<()> {
        if self.eat(c) { Ok(()) } else { Err(self.error(&format!("expected {c:?}"))) }
    }

    fn eat(&mut self, c: char) -> bool {
        self.skip_blanks();
        let found = self.text[self.at..].starts_with(c);
        if found {
            self.at += c.len_utf8();
        }
        found
    }

    fn skip_blanks(&mut self) {
        let rest = &self.text[self.at..];
        self.at += rest.len() - rest.trim_start().len();
    }

    fn error(&self, what: &str) -> Error {
        let position = self.text[..self.at].chars().count() + 1;
        Error::new(ErrorKind::Usage, format!("{:?}, character {position}: {what}", self.text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_the_list_of_the_readme() {
        let calls = parse("count(*), sum(abalance),sum( octet_length(filler) )").unwrap();
        assert_eq!(calls[0].argument, Argument::Star);
        assert_eq!(calls[1].argument, Argument::Column("abalance".into()));
        assert_eq!(calls[2].argument, Argument::OctetLength("filler".into()));
        assert_eq!(calls[2].text, "sum( octet_length(filler) )");
    }

    #[test]
    fn names_fold_and_quote_as_in_sql() {
        assert_eq!(parse("MIN(Aid)").unwrap()[0].argument, Argument::Column("aid".into()));
        assert_eq!(parse(r#"max("Odd ""name, x")"#).unwrap()[0].argument, Argument::Column("Odd \"name, x".into()));
        assert_eq!(parse("sum(octet_length)").unwrap()[0].argument, Argument::Column("octet_length".into()));
        assert_eq!(parse_columns(r#"A, "B,c" ,d"#).unwrap(), ["a", "B,c", "d"]);
    }

    #[test]
    fn expressions_have_the_usual_precedence() {
        let expression = |text: &str| match &parse(text).unwrap()[0].argument {
            Argument::Expression(expression) => expression.clone(),
            other => panic!("{text}: {other:?}"),
        };
        assert_eq!(expression("sum(a + b * -2)"), expression("sum(a+(b*(-2)))"));
        assert_eq!(expression("sum(a - b - c)"), expression("sum((a - b) - c)"));
        assert_ne!(expression("sum(a * (1 - b))"), expression("sum(a * 1 - b)"));
        assert_eq!(parse("sum(((a)))").unwrap()[0].argument, Argument::Column("a".into()));
        assert!(parse(&format!("sum(a{})", "*a".repeat(200))).is_err());
        assert!(parse(&format!("sum({}a{})", "(".repeat(200), ")".repeat(200))).is_err());
    }

    #[test]
    fn errors_name_the_position() {
        for (text, position) in [
            ("", 1),
            ("avg(x)", 1),
            ("sum(*)", 1),
            ("count(*) x", 10),
            ("count(*),", 10),
            ("sum(\"x)", 5),
            ("sum(x", 6),
            ("sum(1)", 5),
            ("sum(a b)", 7),
            ("sum(a *)", 8),
            ("sum(a * (b)", 12),
            ("sum(1.2.3 * a)", 5),
            ("sum(1e5 * a)", 5),
            ("min(a * b)", 5),
            ("sum(a / b)", 7),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(&format!("character {position}:")), "{text}: {error}");
        }
    }
}
