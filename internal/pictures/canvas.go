package main

import (
	"bytes"
	"fmt"
	"html"
)

// A canvas is an SVG that is being drawn. Its shapes name a class of the style, never a colour.
type canvas struct{ bytes.Buffer }

const style = `<style>
svg { font-family: system-ui, -apple-system, "Segoe UI", "Noto Sans", "DejaVu Sans", sans-serif; font-size: 13px;
  --paper: #ffffff; --edge: #d8d4cb; --sunk: #f3f1ec; --ink: #1d1c1a; --dim: #5c5952;
  --accent: #0b6b64; --soft: #d9eeeb; --wait: #7d5600; --wait-soft: #f7e7bf; --bad: #b3261e; --bad-soft: #f9dcd8; }
@media (prefers-color-scheme: dark) { svg {
  --paper: #17191b; --edge: #3b3f45; --sunk: #222528; --ink: #ecebe8; --dim: #a9a69f;
  --accent: #4fc3b5; --soft: #16332f; --wait: #e5b64a; --wait-soft: #382c10; --bad: #ff8a80; --bad-soft: #43201d; } }
text { fill: var(--ink); } .dim { fill: var(--dim); } .small { font-size: 12px; } .title { font-weight: 600; }
.mono { font-family: ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: 12px; }
.accent-ink { fill: var(--accent); } .wait-ink { fill: var(--wait); } .bad-ink { fill: var(--bad); }
rect { stroke-width: 1; } .paper { fill: var(--paper); stroke: var(--edge); } .sunk { fill: var(--sunk); stroke: var(--edge); }
.soft { fill: var(--soft); stroke: var(--accent); } .wait { fill: var(--wait-soft); stroke: var(--wait); }
.bad { fill: var(--bad-soft); stroke: var(--bad); } .gap { fill: url(#gap); stroke: var(--wait); }
.line { stroke: var(--dim); stroke-width: 1.25; fill: none; } .faint { stroke: var(--edge); stroke-width: 1; }
.beat { stroke: var(--accent); stroke-width: 2; } .lost { stroke: var(--bad); stroke-width: 1; }
.head { fill: var(--dim); } .stripe { stroke: var(--wait); stroke-width: 1.25; }
</style>
<defs>
<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto-start-reverse"><path class="head" d="M0 0.5 8 4 0 7.5z"/></marker>
<pattern id="gap" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><path class="stripe" d="M0 0V6"/></pattern>
</defs>
`

// begin starts a picture; words say what it shows, for screen readers.
func begin(width, height int, title, words string) *canvas {
	c := new(canvas)
	fmt.Fprintf(c, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img" aria-labelledby="title words">`+"\n", width, height, width, height)
	fmt.Fprintf(c, "<title id=\"title\">%s</title>\n<desc id=\"words\">%s</desc>\n", html.EscapeString(title), html.EscapeString(words))
	c.WriteString("<!-- drawn by go run ./internal/pictures docs/pictures -->\n" + style)
	c.box("paper", 0.5, 0.5, float64(width)-1, float64(height)-1, 10)
	return c
}

func (c *canvas) end() []byte {
	c.WriteString("</svg>\n")
	return c.Bytes()
}

func (c *canvas) box(class string, x, y, w, h, round float64) {
	fmt.Fprintf(c, `<rect class="%s" x="%.5g" y="%.5g" width="%.5g" height="%.5g" rx="%.5g"/>`+"\n", class, x, y, w, h, round)
}

// text writes a line that begins at x, on the base line y.
func (c *canvas) text(class string, x, y float64, s string) { c.write(class, "start", x, y, s) }

// middle and before write a line around x, and one that ends at x.
func (c *canvas) middle(class string, x, y float64, s string) { c.write(class, "middle", x, y, s) }
func (c *canvas) before(class string, x, y float64, s string) { c.write(class, "end", x, y, s) }

func (c *canvas) write(class, anchor string, x, y float64, s string) {
	fmt.Fprintf(c, `<text class="%s" text-anchor="%s" x="%.5g" y="%.5g">%s</text>`+"\n", class, anchor, x, y, html.EscapeString(s))
}

func (c *canvas) line(class string, x1, y1, x2, y2 float64) {
	fmt.Fprintf(c, `<path class="%s" d="M%.5g %.5gL%.5g %.5g"/>`+"\n", class, x1, y1, x2, y2)
}

func (c *canvas) arrow(x1, y1, x2, y2 float64) {
	fmt.Fprintf(c, `<path class="line" marker-end="url(#head)" d="M%.5g %.5gL%.5g %.5g"/>`+"\n", x1, y1, x2, y2)
}
