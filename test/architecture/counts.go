package architecture

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
)

const (
	drawnComments   = 30
	drawnParagraphs = 20
	// leastWords is the shortest length of a drawn text, in words: shorter texts show no style.
	leastWords = 8
)

// PrintCounts prints counts of the tree below dir: unused words and phrases, long sentences,
// exported names without a comment, and names of several types. It only parses, so it reads a tree
// of any age. A seed other than 0 also draws comments and paragraphs for human judgement.
func PrintCounts(w io.Writer, dir string, seed uint64) error {
	texts, broken, err := treeTexts(dir, isWordList)
	if err != nil {
		return err
	}
	for _, name := range broken {
		fmt.Fprintf(w, "cannot parse %s\n", name)
	}
	found := checkLanguage(texts, keptWords)
	printWords(w, found)
	printPhrases(w, texts, found)
	printSentences(w, texts)
	types, bare, err := exportedNames(dir)
	if err != nil {
		return err
	}
	printExported(w, bare)
	printTypes(w, types)
	printWatched(w, texts)
	printFolders(w, found)
	if seed != 0 {
		printDrawn(w, texts, seed)
	}
	return nil
}

// column prints a number and its meaning.
func column(w io.Writer, n int, format string, args ...any) {
	fmt.Fprintf(w, "%7d  %s\n", n, fmt.Sprintf(format, args...))
}

func title(w io.Writer, format string, args ...any) {
	fmt.Fprintf(w, "\n## "+format+"\n\n", args...)
}

// byCount returns the keys of counts, in descending order of their counts.
func byCount(counts map[string]int) []string {
	return slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		return cmp.Or(counts[b]-counts[a], strings.Compare(a, b))
	})
}

func printWords(w io.Writer, found []violation) {
	title(w, "Unused words in names, and in names that texts mention: target 0")
	words, seen := map[string]int{}, map[string]bool{}
	total := 0
	for _, v := range found {
		if v.rule == ruleWord {
			words[v.what]++
			seen[v.text.text] = true
			total++
		}
	}
	column(w, total, "in all, in %d different texts", len(seen))
	for _, word := range byCount(words) {
		column(w, words[word], "%s", word)
	}
}

func printPhrases(w io.Writer, texts []text, found []violation) {
	title(w, "Phrases with a target of their own")
	for _, c := range counted {
		source, pages := 0, 0
		for _, t := range texts {
			n := len(c.pattern.FindAllString(t.text, -1))
			if t.kind == kindName {
				continue
			}
			if strings.HasSuffix(t.path, ".md") {
				pages += n
			} else {
				source += n
			}
		}
		column(w, source+pages, "%s (pages %d)%s", c.name, pages, c.target)
	}
	n := 0
	uses := map[string]int{}
	total := 0
	for _, v := range found {
		switch v.rule {
		case ruleSubject:
			n++
		case rulePhrase:
			uses[strings.ToLower(v.what)]++
			total++
		}
	}
	column(w, n, "free %s as a subject: target 0", freeSubject)

	title(w, "Phrases in comments, strings, pages and other files: target 0")
	column(w, total, "in all")
	rare := 0
	for _, what := range byCount(uses) {
		if uses[what] < 5 {
			rare += uses[what]
			continue
		}
		column(w, uses[what], "%s", what)
	}
	column(w, rare, "others, fewer than 5 times each")
}

func printSentences(w io.Writer, texts []text) {
	title(w, "Sentences: target 0 above %d words", maxSentence)
	for _, of := range []struct {
		name string
		kind kind
	}{{"pages", kindProse}, {"comments", kindComment}} {
		all, long, tooLong := 0, 0, 0
		for _, t := range texts {
			if t.kind != of.kind {
				continue
			}
			for _, s := range splitSentences(t.text) {
				n := countWords(s)
				if n > 0 {
					all++
				}
				if n > aimSentence {
					long++
				}
				if n > maxSentence {
					tooLong++
				}
			}
		}
		column(w, all, "sentences of %s", of.name)
		column(w, long, "above %d words", aimSentence)
		column(w, tooLong, "above %d words", maxSentence)
	}
}

// exportedNames returns the folders of the types of each name, in lower case, and the exported
// names without a comment. Tests, generated files and the folders test and tools do not count.
func exportedNames(dir string) (types map[string][]string, bare []string, err error) {
	types = map[string][]string{}
	err = walkFiles(dir, func(name string, src []byte) error {
		if !isProduct(name) {
			return nil
		}
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, name, src, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil || ast.IsGenerated(file) {
			return nil //nolint:nilerr // treeTexts names files that do not parse
		}
		for _, at := range undocumented(file) {
			bare = append(bare, fmt.Sprintf("%s %s", fset.Position(at.Pos()), at.Name))
		}
		for _, at := range typeNames(file) {
			key := strings.ToLower(at.Name)
			types[key] = append(types[key], fmt.Sprintf("%s:%s", name, at.Name))
		}
		return nil
	})
	return types, bare, err
}

func isProduct(name string) bool {
	top, _, _ := strings.Cut(name, "/")
	return strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go") && top != "test" && top != "tools"
}

// typeNames returns the types that a file declares outside of functions.
func typeNames(file *ast.File) []*ast.Ident {
	var names []*ast.Ident
	for _, d := range file.Decls {
		if d, ok := d.(*ast.GenDecl); ok && d.Tok == token.TYPE {
			for _, s := range d.Specs {
				names = append(names, s.(*ast.TypeSpec).Name)
			}
		}
	}
	return names
}

// undocumented returns the exported functions, methods of exported types, types, constants and
// variables without a comment. The comment of a group counts for all in it.
func undocumented(file *ast.File) []*ast.Ident {
	var bare []*ast.Ident
	add := func(name *ast.Ident, comments ...*ast.CommentGroup) {
		for _, c := range comments {
			if c != nil {
				return
			}
		}
		if name.IsExported() {
			bare = append(bare, name)
		}
	}
	for _, d := range file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Recv == nil || ast.IsExported(receiverType(d)) {
				add(d.Name, d.Doc)
			}
		case *ast.GenDecl:
			for _, s := range d.Specs {
				switch s := s.(type) {
				case *ast.TypeSpec:
					add(s.Name, d.Doc, s.Doc, s.Comment)
				case *ast.ValueSpec:
					for _, name := range s.Names {
						add(name, d.Doc, s.Doc, s.Comment)
					}
				}
			}
		}
	}
	return bare
}

// receiverType returns the name of the type that has a method.
func receiverType(d *ast.FuncDecl) string {
	t := d.Recv.List[0].Type
	for {
		switch x := t.(type) {
		case *ast.StarExpr:
			t = x.X
		case *ast.IndexExpr:
			t = x.X
		case *ast.IndexListExpr:
			t = x.X
		case *ast.Ident:
			return x.Name
		default:
			return ""
		}
	}
}

func printExported(w io.Writer, bare []string) {
	title(w, "Exported names without a comment")
	column(w, len(bare), "in all")
	for _, name := range bare[:min(len(bare), 30)] {
		fmt.Fprintf(w, "         %s\n", name)
	}
}

func printTypes(w io.Writer, types map[string][]string) {
	title(w, "Names of more than one type, capitals aside")
	uses := map[string]int{}
	total := 0
	for name, where := range types {
		if len(where) > 1 {
			uses[name] = len(where)
			total += len(where)
		}
	}
	column(w, len(uses), "names for %d types", total)
	for _, name := range byCount(uses) {
		if uses[name] > 2 {
			column(w, uses[name], "%s", name)
		}
	}
}

func printWatched(w io.Writer, texts []text) {
	title(w, "Words in names that are only watched")
	uses := map[string]int{}
	for _, t := range texts {
		if t.kind != kindName {
			continue
		}
		for _, word := range splitIdentifier(t.text) {
			if slices.Contains(watchedWords, word) {
				uses[word]++
			}
		}
	}
	for _, word := range byCount(uses) {
		column(w, uses[word], "%s", word)
	}
}

// printFolders prints the number of violations in each folder.
func printFolders(w io.Writer, found []violation) {
	title(w, "Violations by folder")
	parts := map[string]int{}
	for _, v := range found {
		parts[topFolders(v.text.path)]++
	}
	for _, part := range byCount(parts) {
		column(w, parts[part], "%s", part)
	}
}

// topFolders returns the first two folders of a path, "." for a file of the root.
func topFolders(name string) string {
	parts := strings.Split(name, "/")
	parts = parts[:min(2, len(parts)-1)]
	return cmp.Or(strings.Join(parts, "/"), ".")
}

// printDrawn prints random texts. The same seed and tree give the same texts.
func printDrawn(w io.Writer, texts []text, seed uint64) {
	chance := rand.New(rand.NewPCG(seed, 0))
	for _, of := range []struct {
		name string
		kind kind
		n    int
	}{{"comments", kindComment, drawnComments}, {"paragraphs", kindProse, drawnParagraphs}} {
		title(w, "%d %s, drawn with seed %d", of.n, of.name, seed)
		for _, t := range draw(chance, texts, of.kind, of.n) {
			fmt.Fprintf(w, "%s:%d\n    %s\n", t.path, t.line, strings.Join(strings.Fields(t.text), " "))
		}
	}
}

// draw returns n random texts of a kind, each with at least leastWords words.
func draw(chance *rand.Rand, texts []text, k kind, n int) []text {
	var all []text
	for _, t := range texts {
		if t.kind == k && countWords(t.text) >= leastWords {
			all = append(all, t)
		}
	}
	chance.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all[:min(n, len(all))]
}
