package architecture

import (
	"go/ast"
	"go/token"
	"strings"
	"unicode"
)

// splitIdentifier returns the words of an identifier in lower case. It understands camel case,
// underscores, hyphens, dots and slashes. Digits stay with the word before them. The plural s of
// an initialism belongs to it: clientIDs has the words client and ids.
func splitIdentifier(name string) []string {
	var words []string
	for part := range strings.FieldsFuncSeq(name, isSeparator) {
		words = append(words, splitCamelCase([]rune(part))...)
	}
	return words
}

func isSeparator(r rune) bool {
	return !unicode.IsLetter(r) && !unicode.IsDigit(r)
}

func splitCamelCase(name []rune) []string {
	var words []string
	begin := 0
	for i := 1; i < len(name); i++ {
		if beginsWord(name, i) {
			words = append(words, strings.ToLower(string(name[begin:i])))
			begin = i
		}
	}
	return append(words, strings.ToLower(string(name[begin:])))
}

// beginsWord reports whether a new word begins at name[i], for i > 0.
func beginsWord(name []rune, i int) bool {
	if !unicode.IsUpper(name[i]) {
		return false
	}
	if !unicode.IsUpper(name[i-1]) {
		return true
	}
	// The last capital of a run begins the next word: TLSConfig. An initialism in the plural has
	// no next word: IDs, IDsOf.
	return i+1 < len(name) && unicode.IsLower(name[i+1]) && !isPlural(name, i+1)
}

// isPlural reports whether name[i] is an s that ends a run of capitals.
func isPlural(name []rune, i int) bool {
	return name[i] == 's' && (i+1 == len(name) || unicode.IsUpper(name[i+1]))
}

// declaredNames returns all names that a file declares: package, named imports, functions, parameters, types,
// fields, methods of interfaces, constants, variables and labels.
func declaredNames(file *ast.File) []*ast.Ident {
	names := []*ast.Ident{file.Name}
	add := func(list ...*ast.Ident) {
		for _, name := range list {
			if name != nil && name.Name != "_" && name.Name != "." {
				names = append(names, name)
			}
		}
	}
	addExpressions := func(list ...ast.Expr) {
		for _, e := range list {
			if name, ok := e.(*ast.Ident); ok {
				add(name)
			}
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ImportSpec:
			add(n.Name)
		case *ast.FuncDecl:
			add(n.Name)
		case *ast.TypeSpec:
			add(n.Name)
		case *ast.ValueSpec:
			add(n.Names...)
		case *ast.Field: // of a struct, an interface, parameters, results, or a receiver
			add(n.Names...)
		case *ast.LabeledStmt:
			add(n.Label)
		case *ast.AssignStmt:
			if n.Tok == token.DEFINE {
				addExpressions(n.Lhs...)
			}
		case *ast.RangeStmt:
			if n.Tok == token.DEFINE {
				addExpressions(n.Key, n.Value)
			}
		}
		return true
	})
	return names
}
