package architecture

import (
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"strconv"
	"strings"
)

// kind is the origin of a text. It determines which checks apply.
type kind int

const (
	kindUnknown kind = iota
	kindName         // an identifier, a part of a path, or a string without a space
	kindComment      // a paragraph of a comment in Go or proto
	kindNote         // a comment of any other file
	kindString       // a string literal that people may read
	kindProse        // a paragraph, list item or heading of a page
	kindCell         // a row of a table
	kindCode         // a line of a code block, or of a file that is no Go
	numKinds
)

var kindNames = [numKinds]string{"unknown", "name", "comment", "note", "string", "prose", "table", "code"}

func (k kind) String() string { return kindNames[k] }

// text is a piece of the tree that people read.
type text struct {
	path string // relative to the root of the tree, with slashes
	line int    // 0 for the path itself
	kind kind
	text string
}

// goTexts returns the names, comments and strings of a Go file. Generated files have none.
func goTexts(path string, src []byte) ([]text, error) {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, path, src, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	if ast.IsGenerated(file) {
		return nil, nil
	}
	var texts []text
	for _, name := range declaredNames(file) {
		texts = append(texts, text{path, fset.Position(name.Pos()).Line, kindName, name.Name})
	}
	for _, group := range file.Comments {
		texts = append(texts, paragraphs(path, kindComment, commentLines(fset, group))...)
	}
	for _, s := range stringLiterals(file) {
		k := kindString
		switch value := strings.TrimSpace(s.value); {
		case value == "":
			continue
		case !strings.ContainsAny(value, " \n"):
			k = kindName
		}
		texts = append(texts, text{path, fset.Position(s.pos).Line, k, s.value})
	}
	return texts, nil
}

// numberedLine is a line of a comment without its slashes.
type numberedLine struct {
	line int
	text string
}

// directive matches comments for tools. What follows a second // is for people again.
var directive = regexp.MustCompile(`^//([a-z]+:|\+build |line |export )`)

func commentLines(fset *token.FileSet, group *ast.CommentGroup) []numberedLine {
	var lines []numberedLine
	for _, c := range group.List {
		at := fset.Position(c.Pos()).Line
		body := c.Text
		if directive.MatchString(body) {
			_, reason, _ := strings.Cut(body[2:], "//")
			lines = append(lines, numberedLine{at, ""}, numberedLine{at, strings.TrimSpace(reason)}, numberedLine{at, ""})
			continue
		}
		if inner, ok := strings.CutPrefix(body, "/*"); ok {
			body = strings.TrimSuffix(inner, "*/")
		} else {
			body = strings.TrimPrefix(body, "//")
		}
		for i, l := range strings.Split(body, "\n") {
			lines = append(lines, numberedLine{at + i, strings.TrimRight(strings.TrimPrefix(l, " "), " \t\r")})
		}
	}
	return lines
}

var (
	listItem = regexp.MustCompile(`^\s*([-*+•]|\d{1,2}[.)])\s+`)
	indented = regexp.MustCompile(`^[ \t]`)
)

// paragraphs joins the lines of a comment to paragraphs and list items. Indented lines that belong
// to no list item are code, as gofmt has it.
func paragraphs(path string, k kind, lines []numberedLine) []text {
	var texts []text
	open, inList := false, false
	for _, l := range lines {
		switch {
		case strings.TrimSpace(l.text) == "":
			open = false
		case listItem.MatchString(l.text):
			open, inList = true, true
			texts = append(texts, text{path, l.line, k, listItem.ReplaceAllString(l.text, "")})
		case indented.MatchString(l.text) && (!inList || !open):
			open = false
			texts = append(texts, text{path, l.line, kindCode, strings.TrimSpace(l.text)})
		case open:
			last := &texts[len(texts)-1]
			last.text += " " + strings.TrimSpace(l.text)
		default:
			open, inList = true, false
			texts = append(texts, text{path, l.line, k, strings.TrimPrefix(l.text, "# ")})
		}
	}
	return texts
}

// literal is the value of a string, or of a sum of strings.
type literal struct {
	pos   token.Pos
	value string
}

// stringLiterals returns the strings of a file except the paths of imports. Strings that are added
// to each other are one literal: a message may go over several lines.
func stringLiterals(file *ast.File) []literal {
	var found []literal
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ImportSpec:
			return false
		case *ast.BinaryExpr:
			if value, ok := sumOfStrings(n); ok {
				found = append(found, literal{n.Pos(), value})
				return false
			}
		case *ast.BasicLit:
			if value, ok := sumOfStrings(n); ok {
				found = append(found, literal{n.Pos(), value})
			}
		}
		return true
	})
	return found
}

func sumOfStrings(e ast.Expr) (string, bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		value, err := strconv.Unquote(e.Value)
		return value, e.Kind == token.STRING && err == nil
	case *ast.BinaryExpr:
		left, ok := sumOfStrings(e.X)
		right, also := sumOfStrings(e.Y)
		return left + right, ok && also && e.Op == token.ADD
	}
	return "", false
}
