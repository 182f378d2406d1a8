package main

import (
	"bytes"
	"fmt"
	"image/color"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// A palette is the colours of a chart on a page that is light or dark.
type palette struct {
	name                   string
	page, ink, muted, grid color.Color
	ours                   color.Color
	others                 []color.Color
	floor                  color.Color
}

func rgb(c uint32) color.Color {
	return color.RGBA{uint8(c >> 16), uint8(c >> 8), uint8(c), 255}
}

var palettes = []palette{
	{"light", rgb(0xffffff), rgb(0x1f2328), rgb(0x59636e), rgb(0xe3e7eb), rgb(0x0969da),
		[]color.Color{rgb(0xbc4c00), rgb(0x8250df), rgb(0x1a7f37), rgb(0x9a6700)}, rgb(0x818b98)},
	{"dark", rgb(0x0d1117), rgb(0xf0f6fc), rgb(0x9198a1), rgb(0x262c34), rgb(0x58a6ff),
		[]color.Color{rgb(0xf0883e), rgb(0xbc8cff), rgb(0x3fb950), rgb(0xd29922)}, rgb(0x7d8590)},
}

// A chart is panels side by side under a title that says what is to be seen.
type chart struct {
	file, title, under string
	height             vg.Length
	panels             []panel
}

// A panel is a part of a chart: lines, or bars if they have no X.
type panel struct {
	title, x string
	lines    []line
	logY     bool
	unit     string
}

// A line is how one system goes, and a bar if it has one point.
type line struct {
	name   string
	points plotter.XYs
	p99    plotter.XYs // drawn thin above it
	kind   role
	hue    int
	note   string
}

type role int

const (
	theirs role = iota
	bare
	holdfasts
)

func (p *palette) colour(l line) color.Color {
	switch {
	case l.kind == holdfasts && l.hue == 0:
		return p.ours
	case l.kind == bare:
		return p.floor
	}
	return p.others[(l.hue+len(p.others)-1)%len(p.others)]
}

const (
	chartWidth = vg.Length(640)
	small      = 9
)

func style(size vg.Length, c color.Color, bold bool) text.Style {
	f := font.Font{Typeface: "Liberation", Variant: "Sans", Size: size}
	if bold {
		f.Weight = 3 // bold
	}
	return text.Style{Color: c, Font: f, Handler: plot.DefaultTextHandler, YAlign: text.YCenter}
}

// draw draws the chart as SVG.
func (c *chart) draw(p *palette) ([]byte, error) {
	sheet := vgsvg.New(chartWidth, c.height)
	all := draw.New(sheet)
	all.FillPolygon(p.page, []vg.Point{all.Min, {X: all.Max.X, Y: all.Min.Y}, all.Max, {X: all.Min.X, Y: all.Max.Y}})
	all.FillText(style(13, p.ink, true), vg.Point{X: 10, Y: c.height - 16}, c.title)
	all.FillText(style(small, p.muted, false), vg.Point{X: 10, Y: c.height - 32}, c.under)
	width := (chartWidth - 12) / vg.Length(len(c.panels))
	for i, panel := range c.panels {
		area := draw.Crop(all, 8+width*vg.Length(i), -(chartWidth - 8 - width*vg.Length(i+1)), 6, -44)
		if panel.x == "" {
			panel.bars(area, p)
		} else if err := panel.curves(area, p); err != nil {
			return nil, err
		}
	}
	var b bytes.Buffer
	_, err := sheet.WriteTo(&b)
	// Where the font is missing, one with the same widths is not.
	svg := strings.ReplaceAll(b.String(), "font-family:Liberation Sans", "font-family:Liberation Sans,Arial,Helvetica,sans-serif")
	return []byte(svg), err
}

// curves draws lines, each named where it ends.
func (pn *panel) curves(c draw.Canvas, p *palette) error {
	const margin = 74 // for the names
	c.FillText(style(10.5, p.ink, true), vg.Point{X: c.Min.X + 4, Y: c.Max.Y - 6}, pn.title)
	c = draw.Crop(c, 0, -margin, 0, -16)
	pl := plot.New()
	pl.BackgroundColor = nil
	pl.X.Label.Text = pn.x
	xs := map[float64]bool{}
	top, bottom := 0.0, math.Inf(1)
	for _, l := range pn.lines {
		for _, pt := range slices.Concat(l.points, l.p99) {
			xs[pt.X] = true
			top, bottom = max(top, pt.Y), min(bottom, pt.Y)
		}
	}
	const room = 22 // for the label of an x; without it only the ends have one
	crowded := vg.Length(len(xs))*room > c.Max.X-c.Min.X
	for i, x := range slices.Sorted(maps.Keys(xs)) {
		tick := plot.Tick{Value: x, Label: short(x)}
		if crowded && i > 0 && i < len(xs)-1 {
			tick.Label = ""
		}
		pl.X.Tick.Marker = append(ticks(pl.X.Tick.Marker), tick)
	}
	pl.X.Scale = plot.LogScale{}
	pl.Y.Min, pl.Y.Max = 0, top*1.08
	pl.Y.Tick.Marker = plot.TickerFunc(fewTicks)
	if pn.logY {
		pl.Y.Scale = plot.LogScale{}
		pl.Y.Min, pl.Y.Max = decade(bottom/1.15), top*1.3
		pl.Y.Tick.Marker = plot.TickerFunc(logTicks)
	}
	for _, a := range []*plot.Axis{&pl.X, &pl.Y} {
		a.Color = p.grid
		a.Tick.Color = p.grid
		a.Tick.Label.Color, a.Tick.Label.Font.Size = p.muted, small-0.5
		a.Tick.Label.Font = style(small-0.5, p.muted, false).Font
		a.Label.TextStyle.Color = p.muted
		a.Label.TextStyle.Font = style(small, p.muted, false).Font
		a.Padding = 4
		a.Tick.Length = 3
	}
	grid := plotter.NewGrid()
	grid.Vertical.Width = 0
	grid.Horizontal.Color, grid.Horizontal.Width = p.grid, 0.6
	pl.Add(grid)
	ordered := slices.Clone(pn.lines)
	slices.SortStableFunc(ordered, func(a, b line) int { return int(a.kind) - int(b.kind) }) // ours above all
	for _, l := range ordered {
		colour := p.colour(l)
		if len(l.p99) > 0 {
			high, err := plotter.NewLine(l.p99)
			if err != nil {
				return err
			}
			high.Color, high.Width, high.Dashes = colour, 0.9, []vg.Length{2, 2}
			pl.Add(high)
		}
		path, dots, err := plotter.NewLinePoints(l.points)
		if err != nil {
			return err
		}
		path.Color, path.Width = colour, 1.3
		dots.Color, dots.Shape, dots.Radius = colour, draw.CircleGlyph{}, 1.8
		if l.kind == holdfasts {
			path.Width, dots.Radius = 2.4, 2.8
		}
		pl.Add(path, dots)
	}
	pl.Draw(c)
	// The names, moved apart where lines end close to each other.
	data := pl.DataCanvas(c)
	toX, toY := pl.Transforms(&data)
	type name struct {
		line
		at, want vg.Length
	}
	var names []name
	for _, l := range pn.lines {
		end := l.points[len(l.points)-1]
		names = append(names, name{line: l, want: toY(end.Y)})
	}
	slices.SortFunc(names, func(a, b name) int { return int(math.Copysign(1, float64(a.want-b.want))) })
	const gap = 22
	for i := range names {
		names[i].at = names[i].want
		if i > 0 {
			names[i].at = max(names[i].at, names[i-1].at+gap)
		}
	}
	for i := len(names) - 1; i >= 0; i-- { // and back from the top
		limit := data.Max.Y - 8
		if i < len(names)-1 {
			limit = names[i+1].at - gap
		}
		names[i].at = max(min(names[i].at, limit), data.Min.Y+vg.Length(i)*gap+4)
	}
	for _, n := range names {
		end := n.points[len(n.points)-1]
		colour := p.colour(n.line)
		from, x := toX(end.X)+4, data.Max.X+9
		c.StrokeLine2(draw.LineStyle{Color: colour, Width: 0.6}, from, n.want, x-2, n.at+1)
		c.FillText(style(small, colour, n.kind == holdfasts), vg.Point{X: x, Y: n.at + 4}, n.name)
		c.FillText(style(small, colour, false), vg.Point{X: x, Y: n.at - 5.5}, short(end.Y)+pn.unit)
	}
	return nil
}

// bars draws a bar for each, with its name above and its length behind.
func (pn *panel) bars(c draw.Canvas, p *palette) {
	c.FillText(style(10.5, p.ink, true), vg.Point{X: c.Min.X + 4, Y: c.Max.Y - 6}, pn.title)
	longest := 0.0
	for _, l := range pn.lines {
		longest = max(longest, l.points[0].Y)
	}
	y := c.Max.Y - 28
	left, room := c.Min.X+4, c.Max.X-c.Min.X-82
	for _, l := range pn.lines {
		colour, ink := p.colour(l), p.muted
		if l.kind == theirs {
			colour = p.floor
		}
		if l.kind == holdfasts {
			ink = p.ink
		}
		c.FillText(style(small, ink, l.kind == holdfasts), vg.Point{X: left, Y: y}, l.name)
		w := vg.Length(l.points[0].Y/longest) * room
		c.FillPolygon(colour, []vg.Point{{X: left, Y: y - 8}, {X: left + w, Y: y - 8}, {X: left + w, Y: y - 17}, {X: left, Y: y - 17}})
		c.FillText(style(small, ink, l.kind == holdfasts), vg.Point{X: left + w + 4, Y: y - 12}, short(l.points[0].Y)+pn.unit+l.note)
		y -= 31
	}
}

func ticks(t plot.Ticker) plot.ConstantTicks {
	all, _ := t.(plot.ConstantTicks)
	return all
}

// fewTicks are about four, at round numbers.
func fewTicks(low, high float64) (all []plot.Tick) {
	step := math.Pow(10, math.Floor(math.Log10(high/3)))
	for _, by := range []float64{5, 2} {
		if high/(step*by) >= 2.5 {
			step *= by
			break
		}
	}
	for x := 0.0; x <= high; x += step {
		all = append(all, plot.Tick{Value: x, Label: short(x)})
	}
	return all
}

// logTicks are at 1, 3, 10, 30 and so on, closer where there is less than a decade.
func logTicks(low, high float64) (all []plot.Tick) {
	marks := []float64{1, 3}
	if high/low < 10 {
		marks = []float64{1, 2, 3, 5}
	}
	for e := math.Floor(math.Log10(low)); e <= math.Log10(high); e++ {
		for _, m := range marks {
			if x := m * math.Pow(10, e); x >= low*0.999 && x <= high {
				all = append(all, plot.Tick{Value: x, Label: short(x)})
			}
		}
	}
	return all
}

// decade is the next lower tick of logTicks.
func decade(x float64) float64 {
	e := math.Pow(10, math.Floor(math.Log10(x)))
	if x >= 3*e {
		return 3 * e
	}
	return e
}

// short writes a number for a chart.
func short(x float64) string {
	text := ""
	switch {
	case x >= 1e6:
		text = fmt.Sprintf("%.3gM", x/1e6)
	case x >= 1e4:
		text = fmt.Sprintf("%.3gk", x/1e3)
	case x >= 1024, x < 1000:
		text = fmt.Sprintf("%.2g", x)
		if x >= 100 {
			text = fmt.Sprintf("%.0f", x)
		}
	default:
		text = fmt.Sprintf("%.0f", x)
	}
	return text
}

// storeNames are how pages call the stores.
var storeNames = map[string]string{"sqlite": "SQLite", "dir": "A directory", "postgres": "PostgreSQL", "mysql": "MariaDB", "etcd": "etcd", "redis": "Redis"}

// systemNames are how charts call those systems whose name is long.
var systemNames = map[string]string{
	"holdfast": "Holdfast", "concurrency.Mutex": "etcd's Mutex", "pg_advisory_lock": "advisory lock", "INSERT, DELETE": "bare writes", "PUT, DELETE": "bare writes",
	"link, unlink": "bare writes",
}

func systemName(row Row) string {
	if name := systemNames[row.System]; name != "" {
		return name
	}
	return row.System
}

// lineOf begins the line of a system.
func lineOf(row Row, hue *int) line {
	l := line{name: systemName(row)}
	switch {
	case row.System == "holdfast":
		l.kind = holdfasts
	case strings.HasPrefix(l.name, "bare"):
		l.kind = bare
	default:
		*hue++
		l.hue = *hue
	}
	return l
}

// drawn are the systems of a store that charts show: those that many know, and ours.
func drawn(row Row) bool {
	switch {
	case row.Unit == "", strings.Contains(row.System, "PgBouncer"), strings.Contains(row.System, "database/sql"), strings.HasPrefix(row.System, "holdfast,"), row.System == "pglock, lease 1s":
		return false
	}
	return true
}

// panelOf collects the rows of a store that a condition holds for as lines over their sizes.
func (r *Report) panelOf(store string, want func(row Row) bool) (p panel) {
	hue := 0
	for _, row := range r.Rows {
		if row.Store != store || !drawn(row) || !want(row) || row.Median == 0 {
			continue
		}
		i := slices.IndexFunc(p.lines, func(l line) bool { return l.name == systemName(row) })
		if i < 0 {
			i = len(p.lines)
			p.lines = append(p.lines, lineOf(row, &hue))
		}
		l := &p.lines[i]
		l.points = append(l.points, plotter.XY{X: float64(row.Size), Y: row.Median})
		if l.kind == holdfasts && row.P99 > 0 && row.Workload == "handoff" {
			l.p99 = append(l.p99, plotter.XY{X: float64(row.Size), Y: row.P99})
		}
	}
	p.title = storeNames[store]
	return p
}

// others is what others used of the machine while a workload ran, in words.
func (r *Report) others(workload string) string {
	low, high := math.Inf(1), 0.0
	for _, row := range r.Rows {
		if row.Workload == workload && row.Store != "memory" {
			low, high = min(low, row.Others), max(high, row.Others)
		}
	}
	from, to := fmt.Sprintf("%.1f", low), fmt.Sprintf("%.1f", high)
	if from != to {
		to = from + " to " + to
	}
	return fmt.Sprintf("others used %s of its %d processors", to, r.Machine.CPUs)
}

// charts are all that a report has the rows for.
func (r *Report) charts() (all []chart) {
	add := func(c chart) {
		c.panels = slices.DeleteFunc(c.panels, func(p panel) bool { return len(p.lines) == 0 })
		if len(c.panels) > 0 {
			all = append(all, c)
		}
	}
	here := "One machine for clients and servers; "
	c := chart{file: "free", title: "A free lock, acquired and released", height: 190,
		under: "Median, ms. × is against the bare writes beside it. " + here + r.others("latency")}
	for _, store := range []string{"sqlite", "postgres", "mysql", "etcd"} {
		p := panel{title: storeNames[store], unit: " ms"}
		hue := 0
		for _, row := range r.Rows {
			if row.Workload == "latency" && row.Store == store && row.Case == "" && drawn(row) {
				l := lineOf(row, &hue)
				l.points = plotter.XYs{{Y: row.Median}}
				if row.Ratio > 0 && row.Of != "itself" {
					l.note = ", " + short(row.Ratio) + "×"
				}
				p.lines = append(p.lines, l)
			}
		}
		slices.SortStableFunc(p.lines, func(a, b line) int { return int(b.kind) - int(a.kind) })
		c.panels = append(c.panels, p)
	}
	add(c)
	c = chart{file: "throughput", title: "Locks a second, by goroutines of one process, each with a name of its own", height: 250,
		under: "A connection for each goroutine, 32 at most. " + here + r.others("throughput")}
	for _, store := range []string{"sqlite", "postgres", "mysql", "etcd"} {
		p := r.panelOf(store, func(row Row) bool { return row.Workload == "throughput" && row.Size > 0 })
		p.x, p.unit = "goroutines", "/s"
		c.panels = append(c.panels, p)
	}
	add(c)
	c = chart{file: "handoff", title: "From one process to the next: a hand-off, by the processes that want the lock", height: 250,
		under: "Median, ms; dotted: the 99th percentile of ours. " + here + r.others("handoff")}
	for _, store := range []string{"postgres", "mysql", "etcd"} {
		p := r.panelOf(store, func(row Row) bool { return row.Workload == "handoff" && row.Size > 1 && row.Unit == "ms" })
		p.x, p.unit, p.logY = "processes", " ms", true
		c.panels = append(c.panels, p)
	}
	add(c)
	c = chart{file: "growth", title: "How cost grows", height: 250, under: "Median, ms, of Holdfast on each store. " + here + r.others("growth")}
	for _, part := range []struct{ what, title, x string }{
		{"names in the table", "A free lock, by names", "names in the table"},
		{"sessions that hold something", "A free lock, by sessions", "sessions that hold a lock"},
		{"sessions that wait for one name, a hand-off", "A hand-off, by its queue", "sessions that wait for the name"},
	} {
		p := panel{title: part.title, x: part.x, unit: " ms", logY: true}
		for i, store := range []string{"postgres", "sqlite", "mysql", "etcd"} {
			one := r.panelOf(store, func(row Row) bool { return row.Workload == "growth" && row.Case == part.what && row.Unit == "ms" })
			for _, l := range one.lines {
				l.name, l.hue = storeNames[store], i
				p.lines = append(p.lines, l)
			}
		}
		c.panels = append(c.panels, p)
	}
	add(c)
	return all
}

// drawAll writes each chart, light and dark, into a directory.
func (r *Report) drawAll(dir string) error {
	for _, c := range r.charts() {
		for _, p := range palettes {
			svg, err := c.draw(&p)
			if err != nil {
				return fmt.Errorf("%s: %w", c.file, err)
			}
			if err := os.WriteFile(filepath.Join(dir, "bench-"+c.file+"-"+p.name+".svg"), svg, 0o644); err != nil {
				return err
			}
		}
	}
	return nil
}
