if exists('b:did_ftplugin')
  finish
endif
let b:did_ftplugin = 1

setlocal comments=:##,:# commentstring=#\ %s
setlocal expandtab shiftwidth=2 softtabstop=2
" `:make %` lists what is wrong with the program in the quickfix window.
setlocal makeprg=tg\ check\ --message-format\ short
setlocal errorformat=%f:%l:%c:\ %t%*[a-z][%*[A-Z0-9]]:\ %m

let b:undo_ftplugin = 'setlocal comments< commentstring< expandtab< shiftwidth< softtabstop< makeprg< errorformat<'
