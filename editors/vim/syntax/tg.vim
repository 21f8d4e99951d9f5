if exists('b:current_syntax')
  finish
endif

syntax keyword tgKeyword let const return use as
syntax keyword tgConditional if else
syntax keyword tgRepeat for in
syntax keyword tgWordOperator and or not
syntax keyword tgBoolean true false
syntax keyword tgDeclaration fn model step nextgroup=tgDeclared skipwhite
syntax keyword tgMemory barrier checkpoint

" These are keywords only where their statement can stand.
syntax match tgDeclaration /^\s*\%(optimizer\|hook\)\ze\s\+\K/ nextgroup=tgDeclared skipwhite
syntax match tgStorage /^\s*\%(param\|state\)\ze\s\+\K/ nextgroup=tgFrozen skipwhite
syntax keyword tgFrozen frozen contained
syntax match tgMemory /^\s*\%(ensure\|release\|budget\|allow\|shard\|sync\)\>\ze\s*[(0-9A-Za-z_]/ nextgroup=tgFlat skipwhite
syntax keyword tgFlat flat contained
syntax match tgKeyword /^\s*\%(minimize\|update\)\ze\s\+\K/
syntax match tgKeyword /\s\zs\%(over\|with\|by\)\ze\s/

syntax match tgDeclared /\K\k*/ contained
syntax match tgFunction /\<\K\k*\ze(/
syntax keyword tgType f16 bf16 f32 f64 i32 i64 u8 bool int float str

syntax match tgNumber /\<\d[0-9_]*\%(\.\d[0-9_]*\)\?\%([eE][+-]\?\d[0-9_]*\)\?\>/
syntax match tgNumber /\<\d[0-9_]*\%(\.\d[0-9_]*\)\?\s*\%(kB\|KB\|MB\|GB\|TB\|KiB\|MiB\|GiB\|TiB\)\>/
syntax keyword tgNumber inf nan pi

syntax match tgEscape /\\\%([ntr0\\"]\|u{\x\+}\)/ contained
syntax match tgBrace /{{\|}}/ contained
syntax region tgInterpolation matchgroup=tgEscape start=/{/ end=/}/ oneline contained contains=tgNumber,tgFunction
syntax region tgString start=/"/ skip=/\\./ end=/"/ oneline contains=tgEscape,tgBrace,tgInterpolation

syntax keyword tgTodo TODO FIXME contained
syntax match tgComment /#.*/ contains=tgTodo
syntax match tgDocumentation /##.*/ contains=tgTodo

highlight default link tgKeyword Keyword
highlight default link tgConditional Conditional
highlight default link tgRepeat Repeat
highlight default link tgWordOperator Operator
highlight default link tgBoolean Boolean
highlight default link tgDeclaration Keyword
highlight default link tgDeclared Function
highlight default link tgFunction Function
highlight default link tgStorage StorageClass
highlight default link tgFrozen StorageClass
highlight default link tgMemory Statement
highlight default link tgFlat Statement
highlight default link tgType Type
highlight default link tgNumber Number
highlight default link tgString String
highlight default link tgEscape SpecialChar
highlight default link tgBrace SpecialChar
highlight default link tgTodo Todo
highlight default link tgComment Comment
highlight default link tgDocumentation SpecialComment

let b:current_syntax = 'tg'
